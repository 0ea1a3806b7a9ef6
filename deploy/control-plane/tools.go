//go:build tools

// Package controlplane names the programs of a Kubernetes control plane, so that one go.mod pins them all. Nothing here runs:
// simulators/kubernetes/binaries.py builds the programs from it, once.
package controlplane

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
)
