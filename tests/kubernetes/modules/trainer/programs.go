//go:build tools

// Package programs names the program of Kubeflow's trainer that ../../programs.sh builds.
package programs

import _ "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"
