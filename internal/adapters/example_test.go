package adapters_test

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/pressly/goose/v3"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/gooselock"
	"github.com/pglock/pglock-go/pglock/leader"
	"github.com/pglock/pglock-go/pglock/schedule"
)

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

// taskExample is the code for gocron in the doc.go of package schedule.
func taskExample(job *schedule.Job, spec schedule.Schedule, s gocron.Scheduler, makeReport schedule.Func) error {
	task := func(ctx context.Context) error {
		if err := job.RunDue(ctx, spec, makeReport); !schedule.Done(err) {
			return err
		}
		return nil
	}
	_, err := s.NewJob(gocron.CronJob("0 3 * * 1-5", false), gocron.NewTask(task))
	return err
}

var _ = taskExample // compiled, and compared with the text

// TestDocumentationShowsTheExample: the code in the doc.go of schedule is that of this file, which the
// compiler checks.
func TestDocumentationShowsTheExample(t *testing.T) {
	t.Parallel()
	own, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	shown, err := os.ReadFile("../../pglock/schedule/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(own), "func taskExample(")
	_, body, _ := strings.Cut(rest, "\n")
	body, _, _ = strings.Cut(body, "\n\treturn err\n")
	if code := "//" + strings.ReplaceAll(body, "\n", "\n//"); !strings.Contains(string(shown), code) {
		t.Errorf("the doc.go of schedule does not show:\n%s", code)
	}
}

// elector is a gocron.Elector: a gocron whose leader runs all jobs.
type elector struct{ *leader.Election }

func (e elector) IsLeader(context.Context) error {
	if _, leads := e.Term(); !leads {
		return errors.New("another scheduler leads")
	}
	return nil
}

var _ gocron.Elector = elector{}

// goose under an advisory lock of the connection that migrates.
func Example_goose() {
	var db *sql.DB
	ctx := context.Background()

	locker := must(gooselock.NewSessionLocker("migrations", gooselock.WithTimeout(10*time.Minute)))
	provider := must(goose.NewProvider(goose.DialectPostgres, db, os.DirFS("migrations"), goose.WithSessionLocker(locker)))
	must(provider.Up(ctx))
}

// goose under a lease, for databases behind a pooler in transaction mode.
func Example_gooseBehindAPooler() {
	var db *sql.DB
	var client *pglock.Client
	ctx := context.Background()

	locker := must(gooselock.NewLocker(client, "migrations"))
	provider := must(goose.NewProvider(goose.DialectPostgres, db, os.DirFS("migrations"), goose.WithLocker(locker)))
	ctx, stop := locker.StopOnLoss(ctx)
	defer stop()
	must(provider.Up(ctx))
}
