package child

import (
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
)

func TestMain(m *testing.M) {
	Hook()
	pgtest.Main(m)
}
