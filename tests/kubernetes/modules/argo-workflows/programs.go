//go:build tools

// Package programs names the programs of Argo Workflows that ../../programs.sh builds.
package programs

import (
	_ "github.com/argoproj/argo-workflows/v3/cmd/argoexec"
	_ "github.com/argoproj/argo-workflows/v3/cmd/workflow-controller"
)
