"""What any driver must do, tried on the real thing: one case for each promise.

    journeyman sandbox conformance --driver qemu

A driver declares in `promises.py` what it does not promise; everything else is tried.
"""
