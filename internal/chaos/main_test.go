//go:build linux

package chaos

import (
	"fmt"
	"os"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(workerVariable); text != "" {
		if err := work(text, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if url := os.Getenv(migrateVariable); url != "" {
		if err := migrate(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	pgtest.Main(m)
}
