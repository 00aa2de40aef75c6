package main

import (
	"context"
	"fmt"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// growth is how many times as many names a table has in the end.
const growth = 100

// grownRow is B18: known names in a table that has grown since the client prepared its statements, which
// nothing has analyzed since, beside a table that has been as large all the time.
func grownRow() trial.Row {
	const grown, large = "the table has grown", "it was as large"
	r := &lab{}
	subject := func(name, schema string, role trial.Role, before, after int) trial.Subject {
		return trial.Subject{Name: name, Role: role, Open: func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
			if err := r.table(ctx, schema, before); err != nil {
				return nil, err
			}
			if err := r.exec(ctx, "ALTER TABLE "+schema+".distributed_locks SET (autovacuum_enabled = false)"); err != nil {
				return nil, err
			}
			client, err := r.client(ctx, s, schema)
			if err != nil {
				return nil, err
			}
			meter := crowd(distinctCrowd, "pairs", nil, acquirePair(client))
			if err := meter.Turn(ctx, crowdTurn); err != nil { // which prepares the statements
				return nil, err
			}
			return meter, r.exec(ctx, fmt.Sprintf(`INSERT INTO %[1]s.distributed_locks (name, token, version, acquired_at, expires_at)
				SELECT 'order-' || i, %[1]s.next_fencing_token(), 2, now(), '-infinity' FROM generate_series(1, %[2]d) AS i`, schema, after-before))
		}}
	}
	all := growth * distinctCrowd
	return trial.Row{
		Number:  "B18",
		What:    fmt.Sprintf("acquire+release of known names, %d goroutines, one client, in a table that grows %d times as large", distinctCrowd, growth),
		Prepare: r.prepare(livelySettings),
		Subjects: []trial.Subject{
			subject(grown, "grown", trial.Ours, distinctCrowd, all),
			subject(large, "large", trial.Ours, all, all),
		},
		Targets:    []trial.Target{target("pairs a second to those of a table that was as large", "pairs", grown, large, trial.AtLeast(0.95))},
		Throughput: true,
	}
}
