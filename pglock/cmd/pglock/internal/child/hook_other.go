//go:build !linux

package child

// Hook does nothing: only Linux has a supervisor.
func Hook() {}
