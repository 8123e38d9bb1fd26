"""TAP, the streams of the releases before UPR and DCP: out to whoever connects, and in from whoever sends."""
