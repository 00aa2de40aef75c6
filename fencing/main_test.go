package fencing_test

import (
	"log"
	"os"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
)

// holderVariable has the spec of a holder and makes the test binary one: see holder_test.go.
const holderVariable = "PGLOCK_TEST_HOLDER"

func TestMain(m *testing.M) {
	if input := os.Getenv(holderVariable); input != "" {
		if err := hold(input, os.Stdin); err != nil {
			log.Fatal(err)
		}
		return
	}
	pgtest.Main(m)
}
