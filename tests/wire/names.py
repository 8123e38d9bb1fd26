"""Whether a source and our catalogue mean one field: two seqnos that are swapped have the right bytes all the same.

A source's label is ours, or stands in this table with the labels that we have for it.
"""

from headrace.wire.fields import machine_name

# The label of a document or of a server's source -> what we call the same field.
SYNONYMS: dict[str, set[str]] = {
    "end_by_seqno": {"end_seqno"},
    "start_by_seqno": {"start_seqno"},
    "high_seqno": {"vb_seqno"},  # the draft's failover log
    "vbucket_uuid": {"vb_uuid"},
    "old_vbucket_uuid": {"old_vb_uuid"},
    "rollback_seqno": {"rollback"},
    "item_exp": {"expiration"},
    "item_flags": {"flags"},
    "flag": {"flags"},
    "reason": {"flags"},  # of a stream end
    "snapshot_type": {"flags"},
    "request_type": {"data_type"},  # E-DRAFT-2
    "vb_state": {"checkpoint"},  # E-TAP-5
    "status": {"vbucket"},  # the legend of the draft's stream end has the words of a response
    "key": {"name", "path"},
    "value": {"path", "paths"},
    "document": {"value"},
    "meta": {"metadata"},
    "framing_extras": {"framing_length"},
    "frame": {"framing_extras"},
    "engine_length": {"engine_priv"},
    "revision": {"rev_seqno", "engine_data"},
    "registered": {"rest"},
    "checkpoints": {"listed"},
    "checkpoint_id": {"checkpoint"},
    "open_checkpoint_id": {"open_checkpoint"},
    "persisted_checkpoint_id": {"persisted_checkpoint"},
    "collection_id": {"collection", "id"},
    "scope_id": {"id"},
    "counter": {"number"},
    "datatype": {"item_data_type"},
    "delete_time": {"expiration"},  # of a delete with meta
    "durability_level": {"durability"},
    "file_id": {"db_file_id"},
    "padding": {"pad"},
    "purge_before_time": {"purge_before_ts"},
    "seqno": {"by_seqno", "vb_seqno"},
    "sequence_number": {"seqno"},
}


def named_alike(theirs: str, ours: str) -> bool:
    """Whether two labels name one field."""
    return machine_name(ours) in {machine_name(theirs), *SYNONYMS.get(machine_name(theirs), ())}
