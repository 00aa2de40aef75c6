package ui_test

import (
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
