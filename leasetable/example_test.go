package leasetable_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/leasetable"
)

// direct makes a connection of pgx a Sender.
type direct struct{ *pgx.Conn }

func (d direct) Send(ctx context.Context, st leasetable.Statement) (sent time.Time, err error) {
	sent = time.Now()
	rows, _ := d.Query(ctx, st.SQL, st.Args...) // Read returns its error
	return sent, st.Read(rows)
}

// A lease on one connection, without a client: it is acquired, renewed and released.
func Example() {
	ctx := context.Background()
	pool, stop := locktest.ExamplePool()
	defer stop()
	conn, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
	if err != nil {
		log.Panic(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "SELECT "+leasetable.Settings("false")); err != nil {
		log.Panic(err)
	}

	table := leasetable.New("pglock", direct{conn})
	if err := table.LiftTokens(ctx, "nightly report"); err != nil {
		log.Panic(err)
	}
	request := &leasetable.Request{
		Name: "nightly report", ID: "0190163d-8694-739b-aea5-966c26f8ad90", // a new UUID for each call
		Holder: "me", Labels: "{}", TTL: 30 * time.Second, Ticket: leasetable.NoTicket,
	}
	grants, err := table.AcquireFull(ctx, []*leasetable.Request{request})
	if err != nil || grants[0].Outcome != leasetable.Granted {
		log.Panic(grants, err)
	}
	deadline := grants[0].Sent.Add(grants[0].Remaining)
	fmt.Println("held for a while:", time.Until(deadline) > 20*time.Second)

	fence := fencing.Fence{Schema: "pglock", Name: request.Name, Token: grants[0].Token}
	renewed, err := table.Renew(ctx, []leasetable.Extension{{Fence: fence, TTL: time.Minute}})
	fmt.Println("renewed:", renewed[fence].Outcome == leasetable.Granted, err)

	released, _, err := table.Release(ctx, fence, 0)
	fmt.Println("released:", released, err)
	// Output:
	// held for a while: true
	// renewed: true <nil>
	// released: true <nil>
}
