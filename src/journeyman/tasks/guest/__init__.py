"""What runs inside a sandbox. Nothing here is imported on this machine except by tests."""
