package rowlock

import (
	_ "embed"
	"strings"

	"github.com/pglock/pglock-go/internal/schema"
)

//go:embed sql/limit.sql
var limitFile string

//go:embed sql/lock.sql
var lockFile string

//go:embed sql/find.sql
var findFile string

//go:embed sql/move.sql
var moveFile string

// The files without their comments.
var (
	limitSQL = schema.Render(limitFile, schema.Default)
	lockSQL  = schema.Render(lockFile, schema.Default)
	findSQL  = schema.Render(findFile, schema.Default)
	moveSQL  = schema.Render(moveFile, schema.Default)
)

const claimSQL = `SELECT :columns FROM :table AS t WHERE true :where ORDER BY :order LIMIT $1 FOR UPDATE OF t SKIP LOCKED`

// render puts the table, its key and the conditions into a statement whose own parameters are
// args, and what else is given as pairs of a placeholder and its replacement. What is put in is not
// searched for placeholders again.
func (c *call) render(sql string, args []any, also ...string) query {
	conditions, values := where(c.cfg.conditions, len(args)+1)
	pairs := append([]string{
		":table", c.table.String(), ":key", quote(c.table.Key), ":where", conditions,
	}, also...)
	return query{strings.NewReplacer(pairs...).Replace(sql), append(args, values...)}
}
