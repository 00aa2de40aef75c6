package adapters_test

import (
	"context"
	"database/sql"
	"log"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/pressly/goose/v3"
	"github.com/robfig/cron/v3"

	"github.com/pglock/pglock-go/migrations/gooselock"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
	"github.com/pglock/pglock-go/pglock/schedule/cronlock"
	"github.com/pglock/pglock-go/pglock/schedule/gocronlock"
)

func report(context.Context, *pglock.Lease) error { return nil }

func poll(context.Context, *pglock.Lease) error { return nil }

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

// The functions with the suffix Example are the code in the doc.go of gocronlock and cronlock:
// TestDocumentationShowsTheExamples compares them.

func gridExample(client *pglock.Client) error {
	locker, err := gocronlock.NewLocker[gocron.Lock](client, time.Minute)
	if err != nil {
		return err
	}
	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	if err != nil {
		return err
	}
	_, err = s.NewJob(gocron.CronJob("*/5 * * * *", false),
		gocron.NewTask(locker.Task(report)), gocron.WithName("report"))
	if err != nil {
		return err
	}
	s.Start()
	return nil
}

func intervalExample(client *pglock.Client) error {
	locker, err := gocronlock.NewJobLocker[gocron.Lock](client, "poll", 4*time.Second)
	if err != nil {
		return err
	}
	s, err := gocron.NewScheduler()
	if err != nil {
		return err
	}
	_, err = s.NewJob(gocron.DurationJob(4*time.Second),
		gocron.NewTask(locker.Task(poll)), gocron.WithDistributedJobLocker(locker))
	if err != nil {
		return err
	}
	s.Start()
	return nil
}

func leaderExample(client *pglock.Client) error {
	elector, err := gocronlock.NewElector(client, "leader")
	if err != nil {
		return err
	}
	s, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		return err
	}
	_, err = s.NewJob(gocron.DurationJob(time.Minute), gocron.NewTask(elector.Task(report)))
	if err != nil {
		return err
	}
	s.Start()
	return nil
}

func funcExample(ctx context.Context, client *pglock.Client) error {
	job, err := schedule.New(client, "report")
	if err != nil {
		return err
	}
	fiveMinutes, err := cron.ParseStandard("*/5 * * * *")
	if err != nil {
		return err
	}
	run, err := cronlock.Func(ctx, job, fiveMinutes, report)
	if err != nil {
		return err
	}
	c := cron.New()
	c.Schedule(fiveMinutes, cron.FuncJob(run))
	c.Start()
	return nil
}

func wrapperExample(ctx context.Context, job *schedule.Job, fiveMinutes cron.Schedule, existing cron.Job) error {
	once, err := cronlock.Wrapper[cron.Job](ctx, job, fiveMinutes)
	if err != nil {
		return err
	}
	c := cron.New()
	c.Schedule(fiveMinutes, cron.NewChain(cron.Recover(cron.DefaultLogger), once).Then(existing))
	c.Start()
	return nil
}

// examples has the functions above by the package whose doc.go shows them. It also keeps them from
// being reported as unused.
var examples = map[string][]any{
	"gocronlock": {gridExample, intervalExample, leaderExample},
	"cronlock":   {funcExample, wrapperExample},
}

// TestDocumentationShowsTheExamples: the code in the doc.go of gocronlock and cronlock is the code
// of the functions above, which the compiler checks.
func TestDocumentationShowsTheExamples(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for name, functions := range examples {
		doc, err := os.ReadFile(filepath.Join("..", "..", "pglock", "schedule", name, "doc.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range functions {
			full := runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name()
			function := full[strings.LastIndex(full, ".")+1:]
			_, rest, _ := strings.Cut(string(source), "func "+function+"(")
			_, rest, _ = strings.Cut(rest, "{\n")
			body, _, found := strings.Cut(rest, "\treturn nil\n}\n")
			code := "//" + strings.ReplaceAll(strings.TrimSuffix(body, "\n"), "\n", "\n//") + "\n"
			if !found || !strings.Contains(string(doc), code) {
				t.Errorf("the doc.go of %s does not show %s:\n%s", name, function, code)
			}
		}
	}
}

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
