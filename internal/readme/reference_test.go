package readme_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
)

// exported returns the exported names of a package, and of the methods of its types as Type.Method. The
// values are the types of the results of functions.
func exported(t *testing.T, dir string) map[string][]string {
	t.Helper()
	names := map[string][]string{}
	files, _ := filepath.Glob(filepath.Join(root, dir, "*.go"))
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			declared(d, names)
		}
	}
	if len(names) == 0 {
		t.Fatalf("%s has no exported names", dir)
	}
	return names
}

// declared adds the exported names of a declaration.
func declared(d ast.Decl, names map[string][]string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		name := d.Name.Name
		if d.Recv != nil {
			receiver := d.Recv.List[0].Type
			if star, ok := receiver.(*ast.StarExpr); ok {
				receiver = star.X
			}
			if id, ok := receiver.(*ast.Ident); ok {
				name = id.Name + "." + name
			}
		}
		results := []string{}
		if d.Type.Results != nil {
			for _, r := range d.Type.Results.List {
				if id, ok := r.Type.(*ast.Ident); ok {
					results = append(results, id.Name)
				}
			}
		}
		if ast.IsExported(d.Name.Name) {
			names[name] = results
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					names[s.Name.Name] = nil
				}
			case *ast.ValueSpec:
				for _, id := range s.Names {
					if id.IsExported() {
						names[id.Name] = nil
					}
				}
			}
		}
	}
}

// firstCells returns the names in the first cells of a page's tables.
func firstCells(t *testing.T, page, pattern string) []string {
	t.Helper()
	found := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `("+pattern+")`").FindAllStringSubmatch(read(t, filepath.Join(root, page)), -1) {
		if found[m[1]] {
			t.Errorf("%s lists %s twice", page, m[1])
		}
		found[m[1]] = true
	}
	return slices.Sorted(maps.Keys(found))
}

// TestReferenceIsComplete compares the tables of the reference with the code.
func TestReferenceIsComplete(t *testing.T) {
	t.Parallel()
	var options, problems, metrics []string
	for name, results := range exported(t, "pglock") {
		if strings.HasPrefix(name, "With") && (slices.Contains(results, "Option") || slices.Contains(results, "LeaseOption")) {
			options = append(options, name)
		}
		if strings.HasPrefix(name, "Err") {
			problems = append(problems, name)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^//\t(pglock\.[a-z_.]+) {2,}(?:histogram|counter|up-down counter|gauge)`).FindAllStringSubmatch(
		read(t, root+"/pglock/otelpglock/doc.go"), -1) {
		metrics = append(metrics, m[1])
	}
	var listed []string
	for _, m := range regexp.MustCompile("(?m)^\\| `[a-z_]+` \\| `([a-z_.]+)`").FindAllStringSubmatch(read(t, root+"/docs/reference/metrics.md"), -1) {
		listed = append(listed, m[1])
	}
	slices.Sort(listed)
	for _, table := range []struct {
		page         string
		listed, want []string
		enough       int
	}{
		{"options.md", firstCells(t, "docs/reference/options.md", `With\w+`), options, 15},
		{"errors.md", firstCells(t, "docs/reference/errors.md", `Err\w+`), problems, 15},
		{"metrics.md", listed, metrics, 15},
	} {
		slices.Sort(table.want)
		if !slices.Equal(table.listed, table.want) || len(table.want) < table.enough {
			t.Errorf("%s lists %q, and there are %q", table.page, table.listed, table.want)
		}
	}
}

// TestFunctionsOfSQL checks that the functions and tables that the reference lists exist, and that it lists
// all tables, views and sequences, and all functions with a comment, here or in the protocol.
func TestFunctionsOfSQL(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, pgtest.Database(t))
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	internal := map[string]bool{ // with a comment, and for the package only
		"next_fencing_token": true, "fencing_high_water": true, "high_water_limit": true,
	}
	catalog := func(query string) (names []string) {
		if err := pool.QueryRow(t.Context(), query).Scan(&names); err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(names, func(n string) bool { return internal[n] })
	}
	inTables := func(page, pattern string) (names []string) {
		for _, row := range regexp.MustCompile(`(?m)^\| ([^|]*)\|`).FindAllStringSubmatch(read(t, root+"/docs/reference/"+page), -1) {
			for _, m := range regexp.MustCompile("`("+pattern+")[`(]").FindAllStringSubmatch(row[1], -1) {
				names = append(names, m[1])
			}
		}
		slices.Sort(names)
		return slices.DeleteFunc(slices.Compact(names), func(n string) bool { return internal[n] })
	}
	want := catalog(`SELECT array_agg(DISTINCT p.proname::text COLLATE "C" ORDER BY p.proname::text COLLATE "C") FROM pg_proc AS p
		WHERE p.pronamespace = 'pglock'::regnamespace AND obj_description(p.oid) LIKE 'pglock:%'`)
	listed := inTables("sql.md", `[a-z_]+`)
	for _, name := range listed {
		if !slices.Contains(want, name) {
			t.Errorf("sql.md lists %s, which does not exist or has no comment", name)
		}
	}
	listed = append(listed, inTables("sql-protocol.md", `[a-z_]+`)...)
	for _, name := range want {
		if !slices.Contains(listed, name) {
			t.Errorf("neither sql.md nor sql-protocol.md lists the function %s", name)
		}
	}
	want = catalog(`SELECT array_agg(c.relname::text ORDER BY c.relname::text COLLATE "C") FROM pg_class AS c
		WHERE c.relnamespace = 'pglock'::regnamespace AND c.relkind IN ('r', 'v', 'S')`)
	if got := inTables("schema-and-rights.md", `[a-z]\w+`); !slices.Equal(got, want) {
		t.Errorf("schema-and-rights.md lists %q, and there are %q", got, want)
	}
}

// TestNamesOfTheAPIExist checks each name of a package or a method in the code spans of the documents.
func TestNamesOfTheAPIExist(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for name, dir := range map[string]string{
		"pglock": "pglock", "fencing": "fencing", "advisory": "advisory", "migrations": "migrations", "leader": "pglock/leader",
		"schedule": "pglock/schedule", "once": "pglock/once", "oncehttp": "pglock/once/oncehttp", "rowlock": "pglock/rowlock",
		"runner": "pglock/runner", "gooselock": "pglock/gooselock", "sqltx": "pglock/sqltx", "pglocktest": "pglock/pglocktest",
		"ui": "pglock/ui", "observe": "pglock/observe", "fencehttp": "fencing/fencehttp", "otelpglock": "pglock/otelpglock",
	} {
		for n := range exported(t, dir) {
			names[name+"."+n] = true
			if owner, method, isMethod := strings.Cut(n, "."); isMethod {
				names[n] = true
				for variable, kind := range map[string]string{
					"client": "Client", "l": "Lease", "lease": "Lease", "e": "Election", "t": "Term", "job": "Job", "k": "Locks", "other": "Lease", "w": "World", "p": "Process",
				} {
					if owner == kind {
						names[variable+"."+method] = true
					}
				}
				if name == "pglock" && owner == "Client" {
					names["k."+method] = true // Locks embeds it
				}
				if name == "pglocktest" {
					names["k."+method] = true
				}
			}
		}
	}
	span := regexp.MustCompile("`([^`\n]+)`")
	name := regexp.MustCompile(`\b([a-z]\w*|Client|Lease|Lock|Election|Term|Job)\.([A-Z]\w*)`)
	checked := 0
	for document := range documents(t) {
		for line := range strings.Lines(read(t, filepath.Join(root, document))) {
			if document == "docs/guides/coming-from.md" && strings.HasPrefix(line, "| ") {
				_, line, _ = strings.Cut(line[2:], "| ") // the first cell is about the other package
			}
			if document == "docs/reference/promises.md" || document == "docs/explanation/comparison.md" {
				continue // they are about other packages as well
			}
			for _, s := range span.FindAllStringSubmatch(line, -1) {
				for _, m := range name.FindAllStringSubmatch(s[1], -1) {
					owner := m[1]
					if other[owner] {
						continue
					}
					checked++
					if !names[m[0]] {
						t.Errorf("%s: there is no %s", document, m[0])
					}
				}
			}
		}
	}
	if checked < 150 {
		t.Errorf("%d names: the pattern does not find them", checked)
	}
}

// other has the packages and variables in the documents that are not of this module.
var other = map[string]bool{
	"pgx": true, "goose": true, "context": true, "slog": true, "errors": true, "time": true, "errs": true, "testserver": true,
	"pgtest": true, "sql": true, "timing": true, "locktest": true, "pgconn": true, "gocron": true, "cron": true, "gorm": true, "testing": true,
}
