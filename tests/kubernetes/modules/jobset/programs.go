//go:build tools

// Package programs names the program of JobSet that ../../programs.sh builds.
package programs

import _ "sigs.k8s.io/jobset"
