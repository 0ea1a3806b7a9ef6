//go:build tools

// Package temporalserver names the programs of a Temporal service, so that one go.mod pins them. Nothing here runs:
// simulators/temporal_cluster builds the programs from it, once.
package temporalserver

import (
	_ "go.temporal.io/server/cmd/server"
	_ "go.temporal.io/server/cmd/tools/sql"
)
