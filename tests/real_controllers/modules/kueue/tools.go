//go:build tools

// Package controller names a controller of other people's jobs, so that go.mod pins it. Nothing here runs:
// tests/real_controllers/controllers.py builds the program from it, once.
package controller

import _ "sigs.k8s.io/kueue/cmd/kueue"
