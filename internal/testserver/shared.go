package testserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Variables that a person can set. None of them is needed.
const (
	// URLVariable names a server that already runs. The tests need a superuser there, and they
	// create and drop schemas, databases and roles.
	URLVariable = "PGLOCK_TEST_DATABASE_URL"
	// ServerVariable forces one way to a server: url, docker or local.
	ServerVariable = "PGLOCK_TEST_SERVER"
	// ImageVariable names the image for the way docker, and makes this way the only one unless
	// ServerVariable forces another.
	ImageVariable = "PGLOCK_TEST_IMAGE"
	// BinDirVariable is the directory of PostgreSQL's programs for local and private servers.
	BinDirVariable = "PGLOCK_TEST_BINDIR"
	// SettingsVariable changes settings of a shared server that is started here: name=value, separated
	// by spaces.
	SettingsVariable = "PGLOCK_TEST_SETTINGS"
	// PatienceVariable bounds the wait for a registry. Default: 5m.
	PatienceVariable = "PGLOCK_TEST_PATIENCE"

	// DefaultImage is the image for the way docker.
	DefaultImage = "postgres:17-alpine"

	// HandedVariable has the server of the command run, as JSON. Empty: there is none.
	HandedVariable = "PGLOCK_TESTSERVER_SHARED"
)

// Way is how a server was obtained.
type Way string

// The ways to a server.
const (
	WayURL    Way = "url"    // a server that a variable names
	WayDocker Way = "docker" // a container
	WayLocal  Way = "local"  // this machine's PostgreSQL
)

// Shared is a server that many tests use.
type Shared struct {
	URL    string   // superuser, database postgres
	Way    Way      // how the server was obtained
	Detail string   // what it is, for people
	Passed []string // the ways tried before, each with why it failed
}

// String says where the server came from, without its password.
func (s *Shared) String() string { return fmt.Sprintf("%s: %s", s.Way, s.Detail) }

// ErrNoServer is returned by Get when no way leads to a server. The error's text says why each way
// failed.
var ErrNoServer = errors.New("testserver: no PostgreSQL server for the tests")

// shared is what Get returned. A failure is kept too, so that a thousand tests fail at once.
var shared struct {
	sync.Mutex
	server *Shared
	stop   func() error // ends the container, if there is one
	err    error
}

// sharedSettings fit a server that the tests of all packages use at once and that may be in memory.
var sharedSettings = map[string]string{"max_connections": "500", "max_wal_size": "256MB"}

// Get returns the shared server. The first call in a process starts it unless the command run or
// URLVariable provides one.
func Get(ctx context.Context) (*Shared, error) {
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil && shared.err == nil {
		server, err := get(ctx)
		if err != nil && ctx.Err() != nil {
			return nil, err // the caller's impatience is not the server's failure
		}
		shared.server, shared.err = server, err
	}
	return shared.server, shared.err
}

// Environ returns the environment for processes that are to use the server. It has the URL too, for tests that
// are written as those of users, such as the ones in examples.
func (s *Shared) Environ() []string {
	text, _ := json.Marshal(s) // strings only
	return append(os.Environ(), HandedVariable+"="+string(text), URLVariable+"="+s.URL)
}

func get(ctx context.Context) (*Shared, error) {
	// os.Getenv would make the variable an input of the test, and the go command would never cache
	// the result, since the server is another one in each run.
	if text, _ := syscall.Getenv(HandedVariable); text != "" {
		var s Shared
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			return nil, fmt.Errorf("testserver: %s: %w", HandedVariable, err)
		}
		return &s, nil
	}
	c, err := readConfig()
	if err != nil {
		return nil, err
	}
	return c.start(ctx)
}

// config is what the environment says about the server.
type config struct {
	ways     []Way // to try, in this order
	url      string
	image    string
	patience time.Duration
	settings map[string]string // of a server that is started
}

func readConfig() (config, error) {
	c := config{
		ways:     []Way{WayLocal, WayDocker},
		url:      os.Getenv(URLVariable),
		image:    cmp.Or(os.Getenv(ImageVariable), DefaultImage),
		patience: 5 * time.Minute,
		settings: maps.Clone(sharedSettings),
	}
	for setting := range strings.FieldsSeq(os.Getenv(SettingsVariable)) {
		name, value, found := strings.Cut(setting, "=")
		if !found || name == "" {
			return c, fmt.Errorf("testserver: %s: %q: must be name=value", SettingsVariable, setting)
		}
		c.settings[name] = value
	}
	if text := os.Getenv(PatienceVariable); text != "" {
		patience, err := time.ParseDuration(text)
		if err != nil || patience <= 0 {
			return c, fmt.Errorf("testserver: %s=%s: must be a duration above 0, such as 10s", PatienceVariable, text)
		}
		c.patience = patience
	}
	switch forced := Way(os.Getenv(ServerVariable)); {
	case forced == WayURL && c.url == "":
		return c, fmt.Errorf("testserver: %s=%s needs %s", ServerVariable, forced, URLVariable)
	case forced == WayURL, forced == WayDocker, forced == WayLocal:
		c.ways = []Way{forced}
	case forced != "":
		return c, fmt.Errorf("testserver: %s=%s: must be url, docker or local", ServerVariable, forced)
	case c.url != "":
		c.ways = []Way{WayURL}
	case os.Getenv(ImageVariable) != "":
		c.ways = []Way{WayDocker}
	}
	return c, nil
}

// start tries the ways in order. The error says why each of them failed.
func (c config) start(ctx context.Context) (*Shared, error) {
	var passed []string
	for _, way := range c.ways {
		server, err := c.startBy(ctx, way)
		if err == nil {
			server.Way, server.Passed = way, passed
			return server, nil
		}
		passed = append(passed, fmt.Sprintf("%s: %s", way, strings.TrimPrefix(err.Error(), "testserver: ")))
	}
	only := ""
	if len(c.ways) == 1 {
		only = fmt.Sprintf("%s, %s or %s asks for this way only. ", ServerVariable, ImageVariable, URLVariable)
	}
	return nil, fmt.Errorf("%w:\n  %s\n%sAny one of these helps:\n"+
		"  - install PostgreSQL on this machine: testdata/setup.sh does, with apt-get or brew\n"+
		"  - start a Docker engine that can pull %s, or build an image with testdata/image/build.sh\n"+
		"    and name it in %s\n"+
		"  - set %s to a server that runs, as its superuser",
		ErrNoServer, strings.Join(passed, "\n  "), only, DefaultImage, ImageVariable, URLVariable)
}

func (c config) startBy(ctx context.Context, way Way) (*Shared, error) {
	switch way {
	case WayURL:
		return named(ctx, c.url)
	case WayDocker:
		return c.startContainer(ctx)
	default:
		bin, err := findPrograms()
		if err != nil {
			return nil, err
		}
		server, err := Start(ctx, Options{BinDir: bin, Settings: c.settings}) // Close ends it
		if err != nil {
			return nil, err
		}
		return &Shared{URL: server.URL(), Detail: "PostgreSQL in " + bin}, nil
	}
}

// named returns the server at url. Its error does not show the password.
func named(ctx context.Context, url string) (*Shared, error) {
	parsed, err := pgx.ParseConfig(url)
	if err == nil {
		err = Ping(ctx, url)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", URLVariable, err)
	}
	return &Shared{URL: url, Detail: fmt.Sprintf("%s:%d", parsed.Host, parsed.Port)}, nil
}

// Ping connects and sends one statement, within five seconds.
func Ping(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return conn.Ping(ctx)
}
