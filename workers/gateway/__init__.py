"""The gateway: the process that holds the gRPC streams of training sides. `server` puts its parts together."""
