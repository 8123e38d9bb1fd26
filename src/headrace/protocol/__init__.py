"""The rules of the stream protocols as machines over message values: no IO, and time is an argument.

flow       how much may be on its way                 liveness   the sign of life that a producer asks for
controls   what a consumer may set                    requests   what a stream request is answered with
stream     a stream at its producer, and takeover     consumer   a stream at a consumer that keeps a copy
subscription   a stream at a reader that follows changes
faults, trouble   what a node can be told to do wrong, for who tests a consumer

Import from the modules; nothing is re-exported here, since the two ends never need each other's.
"""
