package leasetable_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/leasetable"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// pooled sends each statement on any connection of a pool.
type pooled struct{ *pgxpool.Pool }

func (p pooled) Send(ctx context.Context, st leasetable.Statement) (sent time.Time, err error) {
	sent = time.Now()
	rows, _ := p.Query(ctx, st.SQL, st.Args...)
	return sent, st.Read(rows)
}
