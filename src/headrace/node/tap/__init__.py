"""TAP, the streams of the releases before UPR and DCP: out to whoever connects, and in from whoever sends.

connecting   TAP CONNECT, its refusals, and the end of a registered client
producer     when something is sent, and what acks mean for it
sending      the streams of a connection: items and checkpoints
streams      a vbucket on a connection, and where its stream begins
messages     the messages that are no items      frames       records to item messages
receiving    what is sent to the node
registered   clients that may come back          checkpoints  their table, and the commands that ask for it
"""
