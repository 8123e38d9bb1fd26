"""Jobs that join a source of changes to something else. They know clients, not nodes or stores.

servers    where a server is; states and seqnos of its vbuckets
lines      connections that were opened for streams          relay   bytes between two of them
replicate  keeps replicas at one server of vbuckets at another
move       gives a vbucket from one owner to another         failover   makes a replica the owner
"""
