package leasetable

import (
	_ "embed"

	"github.com/pglock/pglock-go/internal/schema"
)

var (
	//go:embed sql/acquire.sql
	acquireSQL string
	//go:embed sql/renew.sql
	renewSQL string
	//go:embed sql/alive.sql
	aliveSQL string
	//go:embed sql/release.sql
	releaseSQL string
	//go:embed sql/withdraw.sql
	withdrawSQL string
	//go:embed sql/get.sql
	getSQL string
	//go:embed sql/idle.sql
	idleSQL string
	//go:embed sql/prune.sql
	pruneSQL string
)

// statements are the protocol's, rendered once for a client's schema.
type statements struct {
	acquire, renew, alive, release, withdraw, get, idle, prune string
}

func newStatements(name string) statements {
	return statements{
		acquire:  schema.Render(acquireSQL, name),
		renew:    schema.Render(renewSQL, name),
		alive:    schema.Render(aliveSQL, name),
		release:  schema.Render(releaseSQL, name),
		withdraw: schema.Render(withdrawSQL, name),
		get:      schema.Render(getSQL, name),
		idle:     schema.Render(idleSQL, name),
		prune:    schema.Render(pruneSQL, name),
	}
}
