"""TAP at a node: connections that send what a bucket has and how it changes, as old clients know it.

connecting   TAP CONNECT, its refusals, and the end of a registered client
producer     when something is sent, and what acks mean for it
sending      the streams of a connection: items and checkpoints
streams      a vbucket on a connection, and where its stream begins
messages     the messages that are no items      frames       records to item messages
registered   clients that may come back          checkpoints  their table, and the commands that ask for it
"""
