"""A fleet on paper: the real scheduler on simulated nodes, discrete event by discrete event."""
