"""DCP and UPR at a node: connections that produce streams, and connections that take them in.

ends      what a session has after DCP OPEN          opening   OPEN, and the names of connections
producer  streams out                                consumer  streams in: replicas and takeover
turns     whose turn it is to send                   trouble   faults on demand, for tests of consumers
copies    a stream in and its vbucket                received  frames of a peer to records
feed      the changes of one stream, from memory or disk
frames    records to the frames that a consumer agreed on
"""
