//go:build linux

package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/migrations"
)

// migrateVariable makes the test binary migrate the database of that URL.
const migrateVariable = "PGLOCK_CHAOS_MIGRATE"

// previousVariable names the tag of the release that is upgraded to this one. Without it, this one is upgraded
// to the next release, which adds to the tables.
const previousVariable = "PGLOCK_CHAOS_PREVIOUS"

// upgrade replaces all workers by those of another release, and then back again, one after the other, while
// they work. The tables are migrated after the first worker of the new release has found them too old, and
// stay migrated.
func upgrade() nemesis {
	step := 0
	return nemesis{name: "rolling upgrade and roll-back", control: unlocked,
		prepare: func(a *arena) { step, a.old, a.next = 0, "", ""; a.build() },
		strike: func(a *arena, r *rand.Rand) {
			p := a.crew[step%workers]
			p.leave()
			p.binary = a.next
			if step/workers%2 == 1 {
				p.binary = a.old
			}
			p.start()
			if step == 0 {
				if a.base.Mode != unlocked {
					pgtest.Eventually(a.t, "the new worker finds the tables too old", func() bool {
						return strings.Contains(a.lastError(p.name()), schema.ErrOutdated.Error())
					})
				}
				a.migrate(a.next)
			}
			if step == workers {
				a.migrate(a.old) // as a replica of the older release that starts: nothing to do
			}
			step++
			a.rest(a.between(r, 0.2, 0.4))
		},
	}
}

// leave lets the worker end its turns, as one that is asked to.
func (p *process) leave() {
	_, _ = p.tell.Write([]byte("\n"))
	<-p.gone
	if p.failure != nil {
		p.t.Errorf("%s: %v: %s", p.name(), p.failure, p.stderr)
	}
}

// lastError returns that of the worker's last call that failed.
func (a *arena) lastError(worker string) (text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.records {
		if r.Worker == worker && r.What == missed {
			text = r.Error
		}
	}
	return text
}

// migrate lets a release migrate the tables; "" is this one.
func (a *arena) migrate(binary string) {
	a.t.Helper()
	var err error
	if binary == "" {
		err = migrations.Up(a.t.Context(), a.admin)
	} else {
		cmd := exec.CommandContext(a.t.Context(), binary)
		cmd.Env = append(os.Environ(), migrateVariable+"="+a.server.URL())
		var out []byte
		if out, err = cmd.CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	if err != nil {
		a.t.Fatal(err)
	}
}

// migrate is what the test binary of a release does if migrateVariable is set.
func migrate(url string) error {
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		return err
	}
	defer pool.Close()
	return migrations.Up(context.Background(), pool)
}

// build builds the workers of the other release.
func (a *arena) build() {
	a.t.Helper()
	root, err := filepath.Abs("../..")
	a.ok(err)
	dir := a.t.TempDir()
	if tag := os.Getenv(previousVariable); tag != "" {
		source := filepath.Join(dir, "source")
		a.command(root, "git", "worktree", "add", "--detach", source, tag)
		defer a.command(root, "git", "worktree", "remove", "--force", source)
		a.old = filepath.Join(dir, "old")
		a.command(source, "go", "test", "-c", "-o", a.old, "./internal/chaos")
		return
	}
	constant := regexp.MustCompile(`\bVersion = (\d+)\n`)
	source, err := os.ReadFile(filepath.Join(root, "internal/schema/schema.go"))
	a.ok(err)
	if len(constant.FindAll(source, -1)) != 1 {
		a.t.Fatal("internal/schema/schema.go has no Version")
	}
	version := schema.Version + 1
	files := map[string]string{
		"internal/schema/schema.go": constant.ReplaceAllString(string(source), fmt.Sprintf("Version = %d\n", version)),
		fmt.Sprintf("migrations/%04d_next.up.sql", version): fmt.Sprintf(
			"ALTER TABLE distributed_locks ADD COLUMN next_release text DEFAULT 'new';\n"+
				"CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT %d';\n", version),
		fmt.Sprintf("migrations/%04d_next.down.sql", version): "ALTER TABLE distributed_locks DROP COLUMN next_release;\n",
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for path, text := range files {
		file := filepath.Join(dir, strings.ReplaceAll(path, "/", "_"))
		a.ok(os.WriteFile(file, []byte(text), 0o600))
		overlay.Replace[filepath.Join(root, path)] = file
	}
	text, err := json.Marshal(overlay)
	a.ok(err)
	a.ok(os.WriteFile(filepath.Join(dir, "overlay.json"), text, 0o600))
	a.next = filepath.Join(dir, "next")
	a.command(root, "go", "test", "-c", "-overlay", filepath.Join(dir, "overlay.json"), "-o", a.next, "./internal/chaos")
}

func (a *arena) ok(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

// command runs a command in a directory.
func (a *arena) command(dir, name string, args ...string) {
	a.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		a.t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// TestRollingUpgrade: replicas of two releases work beside each other, and those of the older one open clients
// and call Up on tables of the newer one.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	n := upgrade()
	v := n.run(t, protected, 2*shortRun, seed(t))
	t.Log(v)
	if v.violations.total() > 0 {
		t.Errorf("%d violations: %+v", v.violations.total(), v.violations)
	}
	if v.rounds < 2*workers {
		t.Logf("%d rounds: not all workers were rolled back", v.rounds)
	}
}
