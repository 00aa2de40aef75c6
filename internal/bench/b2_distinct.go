package main

import (
	"fmt"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// distinctCrowd is the number of goroutines, each with a name of its own.
const distinctCrowd = 256

// distinctRow is B2: acquire and release of names without competition, by many goroutines at once. Its
// physical floor is the same batches as bare UPDATEs. Redis and etcd are measured as applications use them,
// and with calls that gather in pipelines and transactions, which is their fastest way.
func distinctRow() trial.Row {
	r := &lab{}
	subject := func(kind string, role trial.Role, conns int) trial.Subject {
		return trial.Subject{Name: kind, Role: role, Open: r.callers(kind, distinctCrowd, conns, false)}
	}
	against := func(kind string, rule trial.Rule) trial.Target {
		return target("pairs a second to those of "+kind, "pairs", kindOurs, kind, rule)
	}
	return trial.Row{
		Number:  "B2",
		What:    fmt.Sprintf("acquire+release of distinct names, %d goroutines, one client", distinctCrowd),
		Prepare: r.prepare(livelySettings, append(createBare, createNaive)...),
		Subjects: []trial.Subject{
			subject(kindOurs, trial.Ours, 0),
			subject(kindBare, trial.Floor, inFlight),
			subject(kindSingle, trial.Floor, 64),
			subject(kindRedis, trial.Peer, 64),
			subject(kindRedisPipelined, trial.Peer, 0),
			subject(kindRedisFastest, trial.Peer, 0),
			subject(kindEtcd, trial.Peer, 0),
			subject(kindEtcdBatched, trial.Peer, 0),
		},
		Targets: []trial.Target{
			against(kindRedis, trial.AtLeast(2)), against(kindSingle, trial.AtLeast(8)), against(kindEtcd, trial.AtLeast(10)),
			against(kindBare, trial.Rule{}), against(kindRedisPipelined, trial.AtLeast(0.8)), against(kindRedisFastest, trial.Rule{}),
			against(kindEtcdBatched, trial.Rule{}),
		},
		Throughput: true,
	}
}
