//go:build tools

// Package programs names the program of the mpi-operator that ../../programs.sh builds.
package programs

import _ "github.com/kubeflow/mpi-operator/cmd/mpi-operator"
