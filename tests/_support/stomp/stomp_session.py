"""Frames and bodies that tests of STOMP's sessions share."""

CONNECTS = {
    "CONNECT": "CONNECT\naccept-version:1.2\n\n\0",
    "STOMP": "STOMP\naccept-version:1.2\n\n\0",
}


SENDS = "".join(f"SEND\ndestination:/queue/a\nreceipt:{n}\n\n\0" for n in range(3))
BAD = {
    "unknown command": "NONSENSE\n\n\0",
    "malformed": "SEND\nno colon\n\n\0",
    "wrong moment": "CONNECT\n\n\0",
    "no destination": "SEND\nreceipt:bad\n\nbody\0",
    "unknown subscription": "UNSUBSCRIBE\nid:9\nreceipt:bad\n\n\0",
    "unknown ack": "ACK\nid:9-1\n\n\0",
    "unknown transaction": "SEND\ndestination:/queue/a\ntransaction:t\nreceipt:bad\n\n\0",
    "DISCONNECT with a body": "DISCONNECT\nreceipt:bad\n\nx\0",
}
