//go:build tools

// Package kubectl names kubectl alone. It is a module of its own, so that what kubectl needs does not make anybody build the programs
// of a control plane again. Nothing here runs: simulators/kubernetes/binaries.py builds it.
package kubectl

import _ "k8s.io/kubernetes/cmd/kubectl"
