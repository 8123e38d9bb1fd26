"""Jobs that join a source of changes to something else. They know clients and Spark, not nodes or stores.

servers    where a server is; states and seqnos of its vbuckets
lines      connections that were opened for streams          relay   bytes between two of them
replicate  keeps replicas at one server of vbuckets at another
move       gives a vbucket from one owner to another         failover   makes a replica the owner

materialize  keeps a table equal to a bucket, on Spark       tables      Delta tables, and logs of changes
unwrapping   errors of ours that come out of Spark
compare      whether two places hold the same items          sides       buckets and tables, group by group
"""
