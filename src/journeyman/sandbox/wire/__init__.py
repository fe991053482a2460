"""What crosses a wire: frames between node and guest, and the HTTP contract of the service."""
