//go:build linux

package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/migrations"
)

const (
	nodes      = 3
	hubAddress = "10.99.0.1"

	readyTime  = 90 * time.Second // for a cluster to have a leader and its standbys
	steadyTime = 5 * time.Second  // between two faults
)

// cluster is three servers under Patroni, each in a namespace, and a hub between them.
//
//	hub: bridge, etcd, workers 0 to 2, this program
//	 ├── node1: Patroni, PostgreSQL, worker 11
//	 ├── node2: ...
//	 └── node3: ...
type cluster struct {
	dir     string
	sync    bool
	etcd    *exec.Cmd
	nodes   []*node
	workers []*exec.Cmd
}

type node struct {
	name    string // also of its namespace, and of its end of the cable in the hub
	address string
}

func newCluster(ctx context.Context, sync bool) (*cluster, error) {
	dir, err := os.MkdirTemp("", "pglock-ha-")
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir, sync: sync}
	for i := range nodes {
		c.nodes = append(c.nodes, &node{fmt.Sprint("node", i+1), fmt.Sprintf("10.99.0.%d", 11+i)})
	}
	if err := c.network(ctx); err != nil {
		c.stop()
		return nil, fmt.Errorf("%w: %w", errImpossible, err)
	}
	return c, nil
}

// network makes the namespaces and the cables. Their names are in a file system that only this process
// and its children see, because another experiment may use the same ones.
func (c *cluster) network(ctx context.Context) error {
	commands := []string{
		"chown postgres " + c.dir,
		"mount --make-rprivate /",
		"mkdir -p /run/netns",
		"mount -t tmpfs netns /run/netns",
		"ip link set lo up",
		"ip link add bridge type bridge",
		"ip addr add " + hubAddress + "/24 dev bridge",
		"ip link set bridge up",
	}
	for _, n := range c.nodes {
		commands = append(commands,
			"ip netns add "+n.name,
			"ip -n "+n.name+" link set lo up",
			"ip link add "+n.name+" type veth peer name eth0 netns "+n.name,
			"ip link set "+n.name+" master bridge up",
			"ip -n "+n.name+" addr add "+n.address+"/24 dev eth0",
			"ip -n "+n.name+" link set eth0 up",
		)
	}
	for _, command := range commands {
		args := strings.Fields(command)
		if text, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, bytes.TrimSpace(text))
		}
	}
	return nil
}

// start starts the servers, and creates the tables.
func (c *cluster) start(ctx context.Context) error {
	var err error
	url := "http://" + hubAddress
	c.etcd, err = c.spawn("etcd", "etcd", "--name", "hub", "--data-dir", filepath.Join(c.dir, "etcd"),
		"--listen-client-urls", url+":2379", "--advertise-client-urls", url+":2379",
		"--listen-peer-urls", url+":2380", "--initial-advertise-peer-urls", url+":2380", "--initial-cluster", "hub="+url+":2380",
		"--enable-v2", "--unsafe-no-fsync")
	if err != nil {
		return err
	}
	for _, n := range c.nodes {
		if err := os.WriteFile(c.config(n), []byte(c.settings(n)), 0o644); err != nil { //nolint:gosec // the user postgres reads it
			return err
		}
		if err := c.startNode(ctx, n); err != nil {
			return err
		}
	}
	leader, err := c.awaitReady(ctx, nil)
	if err != nil {
		return err
	}
	return c.on(ctx, leader, func(pool *pgxpool.Pool) error {
		if err := migrations.Up(ctx, pool); err != nil {
			return err
		}
		_, err := pool.Exec(ctx, `CREATE TABLE ledger (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
			worker int NOT NULL, seq bigint NOT NULL, token bigint NOT NULL)`)
		return err
	})
}

//go:embed patroni.yml
var patroniConfig string

// settings returns the configuration of Patroni for a node.
func (c *cluster) settings(n *node) string {
	postgres, _ := testserver.Program("postgres") // without it Patroni says so in its log
	values := map[string]string{
		"name": n.name, "address": n.address, "hub": hubAddress, "dir": c.dir, "bin": filepath.Dir(postgres), "sync": strconv.FormatBool(c.sync),
	}
	return os.Expand(patroniConfig, func(name string) string { return values[name] })
}

func (c *cluster) config(n *node) string { return filepath.Join(c.dir, n.name+".yml") }

func (c *cluster) startNode(_ context.Context, n *node) error {
	_, err := c.spawn(n.name, "ip", "netns", "exec", n.name,
		"setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups", "patroni", c.config(n))
	return err
}

// spawn starts a program, with its output in files. It ends with stop, or with this program if that is
// killed.
func (c *cluster) spawn(name string, args ...string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(context.Background(), args[0], args[1:]...)
	for suffix, output := range map[string]*io.Writer{".out": &cmd.Stdout, ".log": &cmd.Stderr} {
		file, err := os.OpenFile(filepath.Join(c.dir, name+suffix), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		*output = file
	}
	cmd.Dir = c.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return cmd, nil
}

// member is a node as Patroni sees it.
type member struct {
	Name, Role, State string
	Timeline          int
}

// members asks the nodes, in turn, for the state of the cluster.
func (c *cluster) members(ctx context.Context) ([]member, error) {
	var failed error
	for _, n := range c.nodes {
		var answer struct{ Members []member }
		err := n.call(ctx, http.MethodGet, "/cluster", nil, &answer)
		if err == nil {
			return answer.Members, nil
		}
		failed = errors.Join(failed, err)
	}
	return nil, failed
}

// call calls the REST interface of a node.
func (n *node) call(ctx context.Context, method, path string, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second) // a switchover takes some seconds
	defer cancel()
	var text bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&text).Encode(body); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://"+n.address+":8008"+path, &text)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode >= http.StatusMultipleChoices {
		why, _ := io.ReadAll(io.LimitReader(response.Body, 200))
		return fmt.Errorf("%s %s: %s: %s", n.name, path, response.Status, why)
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

// awaitReady waits until there is a leader, which is not the old one, and all standbys follow it. It
// returns the leader.
func (c *cluster) awaitReady(ctx context.Context, old *node) (*node, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	for {
		members, err := c.members(ctx)
		lead := slices.IndexFunc(members, func(m member) bool { return m.Role == "leader" && m.State == "running" })
		following, synchronous := 0, 0
		for _, m := range members {
			standby := m.Role == "replica" || m.Role == "sync_standby"
			if standby && (m.State == "running" || m.State == "streaming") && lead >= 0 && m.Timeline == members[lead].Timeline {
				following++
			}
			if m.Role == "sync_standby" {
				synchronous++
			}
		}
		if following == nodes-1 && (!c.sync || synchronous > 0) {
			i := slices.IndexFunc(c.nodes, func(n *node) bool { return n.name == members[lead].Name })
			if c.nodes[i] != old {
				return c.nodes[i], nil
			}
		}
		if backoff.Sleep(ctx, 200*time.Millisecond) != nil {
			return nil, fmt.Errorf("the cluster has no new leader with standbys after %v: %+v, %w",
				readyTime, members, errors.Join(err, ctx.Err()))
		}
	}
}

// on runs fn with connections to a node.
func (c *cluster) on(ctx context.Context, n *node, fn func(*pgxpool.Pool) error) error {
	pool, err := pgxpool.New(ctx, c.url(n.address))
	if err != nil {
		return err
	}
	defer pool.Close()
	return fn(pool)
}

func (c *cluster) url(hosts ...string) string {
	return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable&target_session_attrs=read-write&connect_timeout=3", strings.Join(hosts, ","))
}

// startWorkers starts the processes that use the lock.
func (c *cluster) startWorkers() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	var all []string
	start := func(id int, url string, in ...string) error {
		w, err := c.spawn(fmt.Sprint("worker", id), append(in, program, "worker", strconv.Itoa(id), url)...)
		if err == nil {
			c.workers = append(c.workers, w)
		}
		return err
	}
	for i, n := range c.nodes {
		all = append(all, n.address)
		if err := start(11+i, c.url(n.address), "ip", "netns", "exec", n.name); err != nil {
			return err
		}
	}
	for i := range nodes {
		if err := start(i, c.url(all...)); err != nil {
			return err
		}
	}
	return nil
}

// stopWorkers ends the workers and returns their histories.
func (c *cluster) stopWorkers() (all []event, failed error) {
	for _, w := range c.workers {
		_ = w.Process.Signal(syscall.SIGTERM) // those that ended are found below
	}
	for _, w := range c.workers {
		history := w.Stdout.(*os.File).Name()
		failed = errors.Join(failed, w.Wait())
		text, err := os.ReadFile(history)
		failed = errors.Join(failed, err)
		decoder := json.NewDecoder(bytes.NewReader(text))
		for decoder.More() {
			var e event
			if err := decoder.Decode(&e); err != nil {
				failed = errors.Join(failed, fmt.Errorf("%s: %w", history, err))
				break
			}
			all = append(all, e)
		}
	}
	c.workers = nil
	return all, failed
}

// ledger reads the guarded table on the leader, in the order of its writes.
func (c *cluster) ledger(ctx context.Context) (lines []line, err error) {
	leader, err := c.awaitReady(ctx, nil)
	if err != nil {
		return nil, err
	}
	err = c.on(ctx, leader, func(pool *pgxpool.Pool) error {
		rows, _ := pool.Query(ctx, "SELECT worker, seq, token FROM ledger ORDER BY id") // CollectRows returns its error
		lines, err = pgx.CollectRows(rows, pgx.RowToStructByPos[line])
		return err
	})
	return lines, err
}

// stop ends all processes of the cluster. Its network ends with this process.
func (c *cluster) stop() {
	if c.etcd != nil {
		c.workers = append(c.workers, c.etcd)
	}
	for _, w := range c.workers {
		_ = w.Process.Kill() // it may have ended
		_ = w.Wait()
	}
	for _, n := range c.nodes {
		for range 50 {
			if n.signal(func(string) bool { return true }, syscall.SIGKILL) != nil {
				break // none is left
			}
			<-time.After(20 * time.Millisecond)
		}
	}
}
