//go:build linux

package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
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
// to two toy releases, of which the first one adds to the tables, and the second one takes away.
const previousVariable = "PGLOCK_CHAOS_PREVIOUS"

// upgrade replaces all workers by those of another release, one after the other, while they work, and so on
// along the path of releases. The tables are migrated after the first worker of a release has found them too
// old, and are never migrated back. A worker whose release they don't serve any more is refused.
func upgrade() nemesis {
	path := []int{1, 0, 1, 2, 1} // numbers of releases
	if os.Getenv(previousVariable) != "" {
		path = []int{1, 0}
	}
	step, tables := 0, 0
	return nemesis{name: "rolling upgrade and roll-back", control: unlocked, rounds: workers * len(path),
		prepare: func(a *arena) { step, tables = 0, 0; a.build() },
		strike: func(a *arena, r *rand.Rand) {
			p, phase := a.crew[step%workers], step/workers
			if end := len(path) - 2; phase > end {
				phase = end + (phase-end)%2 // to and fro
			}
			release := path[phase]
			if step == workers*(len(path)-1) && tables == 2 {
				a.replace(p, 0)
				a.refused(p, schema.ErrNewer)
			}
			a.replace(p, release)
			if release > tables {
				a.refused(p, schema.ErrOutdated)
				a.migrate(a.releases[release])
				tables = release
			}
			if step == workers {
				a.migrate(a.releases[0]) // as a replica of the older release that starts: nothing to do
			}
			step++
			a.rest(a.between(r, 0.2, 0.4))
		},
	}
}

// replace replaces the worker by one of that release.
func (a *arena) replace(p *process, release int) {
	p.leave()
	p.binary = a.releases[release]
	p.start()
}

// refused waits until calls of the worker fail because of the version of the tables.
func (a *arena) refused(p *process, want error) {
	a.t.Helper()
	if a.base.Mode != unlocked {
		pgtest.Eventually(a.t, "the worker finds: "+want.Error(), func() bool { return strings.Contains(a.lastError(p.name()), want.Error()) })
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

// build builds the workers of the other releases.
func (a *arena) build() {
	a.t.Helper()
	root, err := filepath.Abs("../..")
	a.ok(err)
	dir := a.t.TempDir()
	if tag := os.Getenv(previousVariable); tag != "" {
		source, old := filepath.Join(dir, "source"), filepath.Join(dir, "old")
		a.command(root, "git", "worktree", "add", "--detach", source, tag)
		defer a.command(root, "git", "worktree", "remove", "--force", source)
		a.command(source, "go", "test", "-c", "-o", old, "./internal/chaos")
		a.releases = []string{old, ""}
		return
	}
	const (
		code     = "leasetable/sql/release_batch.sql"
		versions = "internal/schema/schema.go"
		objects  = "internal/schema/objects.txt"
		number   = "CREATE OR REPLACE FUNCTION %s() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT %d';\n"
	)
	// edit returns the text of a file in which the pattern, which must match once, is replaced.
	edit := func(path, pattern, by string) string {
		text, err := os.ReadFile(filepath.Join(root, path))
		a.ok(err)
		re := regexp.MustCompile(pattern)
		if len(re.FindAll(text, -1)) != 1 {
			a.t.Fatalf("%s does not have %s", path, pattern)
		}
		return re.ReplaceAllString(string(text), by)
	}
	one, two := schema.Version+1, schema.Version+2
	adds := map[string]string{
		versions: edit(versions, `\bVersion = \d+\n`, fmt.Sprintf("Version = %d\n", one)),
		code:     edit(code, `pglock\.wake_each\(`, "pglock.wake_names("),
		fmt.Sprintf("migrations/%04d_adds.up.sql", one): "ALTER TABLE distributed_locks ADD COLUMN next_release text DEFAULT 'new';\n" +
			"ALTER FUNCTION wake_each RENAME TO wake_names;\n" + // it keeps its rights
			"CREATE FUNCTION wake_each(lock_names text[], used_up bigint[]) RETURNS text[] LANGUAGE plpgsql AS '\nBEGIN\n    RETURN \"<here>\".wake_names(lock_names, used_up);\nEND\n';\n" +
			"GRANT EXECUTE ON FUNCTION wake_each TO worker;\nSELECT pin_functions();\n" +
			fmt.Sprintf(number, "pglock_schema_version", one),
		objects: edit(objects, `(?m)^function wake_each(.*\n)`, "function wake_each${1}function wake_names$1"),
	}
	takes := maps.Clone(adds)
	takes[versions] = strings.Replace(adds[versions], fmt.Sprintf("Version = %d\n", one), fmt.Sprintf("Version = %d\n", two), 1)
	takes[fmt.Sprintf("migrations/%04d_takes.up.sql", two)] = "DROP FUNCTION wake_each;\n" +
		fmt.Sprintf(number, "pglock_schema_version", two) + fmt.Sprintf(number, "pglock_oldest_client", one)
	takes[objects] = edit(objects, `(?m)^function wake_each`, "function wake_names")
	a.releases = []string{"", a.overlay(root, dir, "adds", adds), a.overlay(root, dir, "takes", takes)}
}

// overlay builds a binary of the tree with some other files, and returns its path.
func (a *arena) overlay(root, dir, name string, files map[string]string) string {
	a.t.Helper()
	replace := map[string]string{}
	for path, text := range files {
		file := filepath.Join(dir, name+"_"+strings.ReplaceAll(path, "/", "_"))
		a.ok(os.WriteFile(file, []byte(text), 0o600))
		replace[filepath.Join(root, path)] = file
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	a.ok(err)
	binary := filepath.Join(dir, name)
	a.ok(os.WriteFile(binary+".json", text, 0o600))
	a.command(root, "go", "test", "-c", "-overlay", binary+".json", "-o", binary, "./internal/chaos")
	return binary
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
// and call Up on tables of the newer one. A release that takes away refuses only those before the last one.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	v := upgrade().run(t, protected, 2*shortRun, seed(t))
	t.Log(v)
	if v.violations.total() > 0 {
		t.Errorf("%d violations: %+v", v.violations.total(), v.violations)
	}
}
