package pgtx_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/pgtx"
)

func TestTransient(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{
		pgtx.AdminShutdown: true, pgtx.SerializationFailure: true, "53300": true, "08006": true,
		pgtx.InsufficientPrivilege: false, pgtx.UndefinedTable: false, pgtx.UniqueViolation: false, pgtx.LockNotAvailable: false,
	} {
		if err := fmt.Errorf("record: %w", &pgconn.PgError{Code: code}); pgtx.Transient(err) != want {
			t.Errorf("%s: %v", code, !want)
		}
	}
	for err, want := range map[error]bool{nil: false, io.ErrUnexpectedEOF: true, context.DeadlineExceeded: true, errs.ErrDriver: false, pgx.ErrNoRows: false} {
		if pgtx.Transient(err) != want {
			t.Errorf("%v: %v", err, !want)
		}
	}
}

// TestP61_PersistRepeatsWhatMayPass: it repeats until a try succeeds, the error does not pass, or ctx
// is done. A try that hangs ends after 5 s.
func TestP61_PersistRepeatsWhatMayPass(t *testing.T) {
	t.Parallel()
	killed, refused := &pgconn.PgError{Code: pgtx.AdminShutdown}, &pgconn.PgError{Code: pgtx.InsufficientPrivilege}
	var logins pgtest.Logins
	logins.Rejecting.Store(true)
	config := pgtest.Pool(t).Config().ConnConfig.Config.Copy()
	config.ValidateConnect = logins.Validate
	_, rejected := pgconn.ConnectConfig(t.Context(), config)
	for name, c := range map[string]struct {
		answers []error // of the tries; the last one is that of all later tries
		want    error
		tries   int // 0: until ctx is done
	}{
		"a success":                    {[]error{nil}, nil, 1},
		"two killed sessions":          {[]error{killed, killed, nil}, nil, 3},
		"a refusal":                    {[]error{refused}, refused, 1},
		"a killed session, a refusal":  {[]error{killed, refused}, refused, 2},
		"killed until ctx is done":     {[]error{killed}, killed, 0},
		"a connection that hangs once": {[]error{context.DeadlineExceeded, nil}, nil, 2},
		"a rotation of passwords":      {[]error{rejected, rejected, nil}, nil, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				tries, began := 0, time.Now()
				err := pgtx.Persist(ctx, func(ctx context.Context) error {
					answer := c.answers[min(tries, len(c.answers)-1)]
					tries++
					if errors.Is(answer, context.DeadlineExceeded) {
						begun := time.Now()
						<-ctx.Done()
						if d := time.Since(begun); d != 5*time.Second {
							t.Errorf("a try that hangs ends after %v", d)
						}
					}
					return answer
				})
				if !errors.Is(err, c.want) || c.tries > 0 && tries != c.tries || c.tries == 0 && (tries < 20 || ctx.Err() == nil) {
					t.Errorf("%v after %d tries, want %v after %d", err, tries, c.want, c.tries)
				}
				if took := time.Since(began); pgtx.LoginRejected(c.answers[0]) && took < 6*time.Second {
					t.Errorf("three logins within %v", took)
				}
			})
		})
	}
}
