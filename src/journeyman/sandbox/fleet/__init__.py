"""Many nodes as one service: placement, warm pools, drain, migration, scaling. No engine is
touched here; the one thing that talks to nodes is `manager`, through the client."""
