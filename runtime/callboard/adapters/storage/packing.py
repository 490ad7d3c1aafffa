"""Compression of stored values: a record or a row is half to a tenth of its size in the database and in its log.

A packed value has the bit `PACKED` in its column `crc`; the other bits are the checksum of the original bytes, so that
whatever goes wrong in between is noticed. Values of earlier versions are not packed, and stay as they are.
"""

from __future__ import annotations

import zlib
from functools import cache
from typing import Any

PACKED = 1 << 32
"""Bit of the column `crc` of a packed value. Checksums have 32 bits."""
SMALLEST_RECORD = 256
"""Bytes of the smallest record that is packed: packing takes 15 us for a small one, 60 us for one of 2 KB."""
SMALLEST_ROW = 256
"""Bytes of the smallest row that is packed: rows of agents, of which a fan-out has hundreds, have 450 to 750."""
_WINDOW = -15  # without header and trailer
_SMALL_WINDOW = -12
_SMALL = 6_000
"""Bytes of values for which the small window is used. A compressor is copied for each value: 24 KB with a small window,
256 KB with a large one, which takes longer than the packing of a small value."""
_MEMORY = 8
_SMALL_MEMORY = 4
_FASTEST = 1  # the slower levels save a twentieth

DICTIONARY = (
    b'{"v":1,"at":17957907,"t":"agent_started","t":"agent_stopped","outcome":"done","t":"context_edited","edits":[]'
    b'{"v":1,"at":17957907,"t":"envelope_received","envelope":{"v":1,"id":"msg_","t":"envelopes_delivered"'
    b'"kind":"message","sender":"lead","type":"prompt","cause":"person","body":"","at":"status":"done","result":"'
    b'{"v":1,"at":17957907,"t":"injection_queued","injection":{"t":"injections_delivered","source":"reminder"'
    b'"pinned":false,"compactable":true,"<system-reminder>\\n</system-reminder>"'
    b'{"v":1,"at":17957907,"t":"turn_began","turn":"turn_","t":"turn_ended","t":"prompt_set","t":"wait_began"'
    b',"t":"file_seen","path":"/home/","digest":"","changed":false,"exists":true,"content":"    1\\t'
    b"0123456789abcdef return self. the import from class def None if not in for is and with to of a "
    b'{"v":1,"at":17957907,"t":"tool_finished","call":"call_","content":[{"type":"text","text":"'
    b'"}],"is_error":false,"data":{"path":"/home/","lines":1,"total_lines":1,"digest":""},"ends_turn":false}'
    b'{"v":1,"at":17957907,"t":"model_replied","ordinal":1,"model":"claude-opus-4-8","stop_reason":"end_turn",'
    b'"stop_reason":"tool_use","blocks":[{"type":"thinking","thinking":"","signature":"{"type":"text","text":"'
    b'"},{"type":"tool_use","id":"toolu_01","name":"bash","name":"read_file","input":{"command":"","path":""}}],'
    b'"calls":[{"v":1,"id":"call_","tool_use_id":"toolu_","tool":"read_file","input":{}}],'
    b'"usage":{"input_tokens":0,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":40,'
    b'"cost_usd":0.0,"unpriced_tokens":0,"web_searches":0},"message_id":"msg_01","draw":0.,"cut_call":"","trimmed":""}'
    b'{"v":1,"at":17957907,"t":"results_merged","turn":"","ordinal":1}'
    b'{"v":1,"at":17957907,"t":"tool_settled","call":"call_","content":null,"is_error":null,"context":[]}'
    b'{"v":1,"at":17957907,"t":"tool_started","call":"call_","effect":"read","marks":{}}'
    b'{"v":1,"at":17957907,"t":"call_judged","call":"call_","verdict":"allow","by":"R","why":"","input":null,'
    b'"context":[],"mode":"default","level":2,"grants":[]}'
    b'{"v":1,"at":17957907,"t":"model_called","ordinal":1,"attempt":1,"model":"claude-opus-4-8","max_tokens":8000,'
    b'"purpose":"turn","reserved_tokens":0,"reserved_usd":0.0,"wind_down":false,"used":{"input_tokens":0,'
    b'"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0,"cost_usd":0.0,'
    b'"unpriced_tokens":0,"web_searches":0}}'
)
"""Text that records have in common, which packed values refer to. Never change it: they could not be read any more."""


def record_crc(stream: str, seq: int, record_id: str | None, data: bytes) -> int:
    """Return the checksum of a record, over its data, its id, and its place.

    The place is included to detect a misplaced record.
    """
    return zlib.crc32(data, zlib.crc32(repr((seq, record_id, stream)).encode()))


def row_crc(key: str, revision: int, value: bytes) -> int:
    """Return the checksum of a key's value, over its key and revision."""
    return zlib.crc32(value, zlib.crc32(repr((revision, key)).encode()))


def pack(data: bytes, crc: int, smallest: int) -> tuple[bytes, int]:
    """Return what to store in the columns of a value and of its checksum."""
    if len(data) < smallest:
        return data, crc
    compressor = _prepared(small=len(data) < _SMALL).copy()
    packed: bytes = compressor.compress(data) + compressor.flush()
    return (packed, crc | PACKED) if len(packed) < len(data) else (data, crc)


@cache
def _prepared(*, small: bool) -> Any:
    """Return a compressor that has read the dictionary, to be copied: a copy takes 1 to 6 us, a new one 10 to 20."""
    window, memory = (_SMALL_WINDOW, _SMALL_MEMORY) if small else (_WINDOW, _MEMORY)
    return zlib.compressobj(_FASTEST, zlib.DEFLATED, window, memory, zlib.Z_DEFAULT_STRATEGY, DICTIONARY)


def unpack(stored: bytes, crc: int) -> tuple[bytes, int]:
    """Return the value and its checksum from these columns. The checksum of a value that is damaged fits no value."""
    if not crc & PACKED:
        return stored, crc
    try:
        decompressor = zlib.decompressobj(_WINDOW, DICTIONARY)
        return decompressor.decompress(stored) + decompressor.flush(), crc ^ PACKED
    except zlib.error:
        return stored, -1
