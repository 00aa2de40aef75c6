//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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
//	hub: bridge, etcd, workers 0 to 2, this program's connections
//	 ├── node 1: Patroni, PostgreSQL, worker 11
//	 ├── node 2: ...
//	 └── node 3: ...
type cluster struct {
	dir     string
	sync    bool
	tag     string // of the namespaces
	etcd    *exec.Cmd
	nodes   []*node
	hub     hub
	workers []*exec.Cmd
	files   []*os.File // histories of the workers
}

type node struct {
	name, address, namespace string
	link                     string // its end of the cable in the hub
	config                   string
	patroni                  *exec.Cmd
}

func newCluster(ctx context.Context, sync bool) (*cluster, error) {
	dir, err := os.MkdirTemp("", "pglock-ha-")
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir, sync: sync, tag: fmt.Sprintf("pglock-ha-%d", os.Getpid())}
	for i := range nodes {
		n := &node{
			name: fmt.Sprint("node", i+1), address: fmt.Sprintf("10.99.0.%d", 11+i),
			namespace: fmt.Sprintf("%s-%d", c.tag, i+1), link: fmt.Sprint("to", i+1),
			config: filepath.Join(dir, fmt.Sprintf("node%d.json", i+1)),
		}
		c.nodes = append(c.nodes, n)
	}
	postgres, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("%w: there is no user postgres", errImpossible)
	}
	uid, _ := strconv.Atoi(postgres.Uid)
	gid, _ := strconv.Atoi(postgres.Gid)
	if err := os.Chown(dir, uid, gid); err != nil {
		return nil, err
	}
	if err := c.network(ctx); err != nil {
		c.stop()
		return nil, fmt.Errorf("%w: %w", errImpossible, err)
	}
	return c, nil
}

// network makes the namespaces and the cables.
func (c *cluster) network(ctx context.Context) error {
	commands := []string{
		"ip netns add " + c.tag,
		"ip -n " + c.tag + " link set lo up",
		"ip -n " + c.tag + " link add bridge type bridge",
		"ip -n " + c.tag + " addr add " + hubAddress + "/24 dev bridge",
		"ip -n " + c.tag + " link set bridge up",
	}
	for _, n := range c.nodes {
		commands = append(commands,
			"ip netns add "+n.namespace,
			"ip -n "+n.namespace+" link set lo up",
			"ip -n "+c.tag+" link add "+n.link+" type veth peer name eth0 netns "+n.namespace,
			"ip -n "+c.tag+" link set "+n.link+" master bridge up",
			"ip -n "+n.namespace+" addr add "+n.address+"/24 dev eth0",
			"ip -n "+n.namespace+" link set eth0 up",
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
	c.etcd, err = c.spawn(c.tag, "etcd", "etcd", "--name", "hub", "--data-dir", filepath.Join(c.dir, "etcd"),
		"--listen-client-urls", url+":2379", "--advertise-client-urls", url+":2379",
		"--listen-peer-urls", url+":2380", "--initial-advertise-peer-urls", url+":2380", "--initial-cluster", "hub="+url+":2380",
		"--enable-v2", "--unsafe-no-fsync")
	if err != nil {
		return err
	}
	for _, n := range c.nodes {
		text, err := json.MarshalIndent(c.settings(n), "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(n.config, text, 0o644); err != nil { //nolint:gosec // the user postgres reads it
			return err
		}
		if err := c.startNode(n); err != nil {
			return err
		}
	}
	leader, err := c.awaitReady(ctx)
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

// settings returns the configuration of Patroni for a node. Its format is YAML, and so JSON.
func (c *cluster) settings(n *node) map[string]any {
	access := map[string]any{"username": "postgres"}
	return map[string]any{
		"scope": "ha", "name": n.name,
		"restapi": map[string]any{"listen": n.address + ":8008", "connect_address": n.address + ":8008"},
		// Not etcd3: with it, Patroni 3.0 lets a leader that was paused take back its key.
		"etcd": map[string]any{"host": hubAddress + ":2379"},
		"bootstrap": map[string]any{
			"dcs": map[string]any{
				// The shortest time that Patroni accepts: loop_wait + 2 * retry_timeout <= ttl.
				"ttl": 20, "loop_wait": 2, "retry_timeout": 3, "maximum_lag_on_failover": 1 << 20,
				"synchronous_mode": c.sync, "synchronous_mode_strict": c.sync,
				"postgresql": map[string]any{
					"use_pg_rewind": true,
					"parameters":    map[string]any{"wal_log_hints": "on", "max_connections": 100, "wal_keep_size": "512MB"},
				},
			},
			"initdb": []any{"data-checksums", map[string]any{"encoding": "UTF8"}, map[string]any{"locale": "C"}},
		},
		"postgresql": map[string]any{
			"listen": n.address + ":5432", "connect_address": n.address + ":5432",
			"data_dir": filepath.Join(c.dir, n.name), "bin_dir": binaries(),
			"pgpass":         filepath.Join(c.dir, n.name+".pgpass"),
			"authentication": map[string]any{"superuser": access, "replication": access, "rewind": access},
			"parameters":     map[string]any{"unix_socket_directories": ""},
			"pg_hba":         []any{"host all all 10.99.0.0/24 trust", "host replication all 10.99.0.0/24 trust"},
		},
	}
}

// binaries returns the directory of the newest PostgreSQL.
func binaries() string {
	all, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres") // the pattern is valid
	if len(all) == 0 {
		return ""
	}
	return filepath.Dir(all[len(all)-1])
}

func (c *cluster) startNode(n *node) (err error) {
	n.patroni, err = c.spawn(n.namespace, n.name,
		"setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups", "patroni", n.config)
	return err
}

// spawn starts a program in a namespace, with its output in a file. It ends with stop, or dies with
// this program.
func (c *cluster) spawn(namespace, name string, args ...string) (*exec.Cmd, error) {
	file, err := os.OpenFile(filepath.Join(c.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	cmd := exec.CommandContext(context.Background(), "ip", append([]string{"netns", "exec", namespace}, args...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.dir, file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() { _ = cmd.Wait() }()
	return cmd, nil
}

// member is a node as Patroni sees it.
type member struct {
	Name, Role, State string
	Timeline          int
}

// members asks the nodes, in turn, for the state of the cluster.
func (c *cluster) members(ctx context.Context, except *node) ([]member, error) {
	var failed error
	for _, n := range c.nodes {
		if n == except {
			continue
		}
		var answer struct{ Members []member }
		err := c.call(ctx, n, http.MethodGet, "/cluster", nil, &answer)
		if err == nil {
			return answer.Members, nil
		}
		failed = errors.Join(failed, err)
	}
	return nil, failed
}

// call calls the REST interface of a node.
func (c *cluster) call(ctx context.Context, n *node, method, path string, body, answer any) error {
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
	client := http.Client{Transport: &http.Transport{DialContext: c.dial, DisableKeepAlives: true}}
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

// leader returns the node that Patroni calls the leader, or nil.
func (c *cluster) leader(members []member) *node {
	for _, m := range members {
		if m.Role == "leader" && m.State == "running" {
			return c.node(m.Name)
		}
	}
	return nil
}

func (c *cluster) node(name string) *node {
	for _, n := range c.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// awaitReady waits until there is a leader and all standbys follow it, and returns the leader.
func (c *cluster) awaitReady(ctx context.Context) (*node, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	for {
		members, err := c.members(ctx, nil)
		leader := c.leader(members)
		following, synchronous := 0, 0
		for _, m := range members {
			same := leader != nil && m.Timeline == members[indexOf(members, leader.name)].Timeline
			if (m.Role == "replica" || m.Role == "sync_standby") && (m.State == "running" || m.State == "streaming") && same {
				following++
			}
			if m.Role == "sync_standby" {
				synchronous++
			}
		}
		if following == nodes-1 && (!c.sync || synchronous > 0) {
			return leader, nil
		}
		if sleep(ctx, 200*time.Millisecond) != nil {
			return nil, fmt.Errorf("the cluster is not ready after %v: %+v, %w", readyTime, members, errors.Join(err, ctx.Err()))
		}
	}
}

func indexOf(members []member, name string) int {
	for i, m := range members {
		if m.Name == name {
			return i
		}
	}
	return 0
}

// on runs fn with connections to a node.
func (c *cluster) on(ctx context.Context, n *node, fn func(*pgxpool.Pool) error) error {
	config, err := pgxpool.ParseConfig(c.url(n.address))
	if err != nil {
		return err
	}
	config.ConnConfig.DialFunc = c.dial
	pool, err := pgxpool.NewWithConfig(ctx, config)
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
	all := make([]string, nodes)
	for i, n := range c.nodes {
		all[i] = n.address
		if err := c.startWorker(program, n.namespace, 11+i, c.url(n.address)); err != nil {
			return err
		}
	}
	for i := range nodes {
		if err := c.startWorker(program, c.tag, i, c.url(all...)); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) startWorker(program, namespace string, id int, url string) error {
	history, err := os.Create(filepath.Join(c.dir, fmt.Sprintf("history%d.json", id)))
	if err != nil {
		return err
	}
	c.files = append(c.files, history)
	log, err := os.Create(filepath.Join(c.dir, fmt.Sprintf("worker%d.log", id)))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(context.Background(), "ip", "netns", "exec", namespace, program, "worker", "-id", strconv.Itoa(id), "-url", url)
	cmd.Stdout, cmd.Stderr = history, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	c.workers = append(c.workers, cmd)
	return nil
}

// stopWorkers ends the workers and returns their histories.
func (c *cluster) stopWorkers() ([]event, error) {
	for _, w := range c.workers {
		_ = w.Process.Signal(syscall.SIGTERM) // those that ended are found below
	}
	var failed error
	for _, w := range c.workers {
		failed = errors.Join(failed, w.Wait())
	}
	c.workers = nil
	var all []event
	for _, f := range c.files {
		text, err := os.ReadFile(f.Name())
		failed = errors.Join(failed, err, f.Close())
		decoder := json.NewDecoder(bytes.NewReader(text))
		for decoder.More() {
			var e event
			if err := decoder.Decode(&e); err != nil {
				failed = errors.Join(failed, fmt.Errorf("%s: %w", f.Name(), err))
				break
			}
			all = append(all, e)
		}
	}
	return all, failed
}

// ledger reads the guarded table on the leader, in the order of its writes.
func (c *cluster) ledger(ctx context.Context) (lines []line, err error) {
	leader, err := c.awaitReady(ctx)
	if err != nil {
		return nil, err
	}
	err = c.on(ctx, leader, func(pool *pgxpool.Pool) error {
		rows, err := pool.Query(ctx, "SELECT worker, seq, token FROM ledger ORDER BY id")
		if err != nil {
			return err
		}
		lines, err = pgx.CollectRows(rows, pgx.RowToStructByPos[line])
		return err
	})
	return lines, err
}

// stop ends all processes of the cluster, and deletes its network.
func (c *cluster) stop() {
	for _, w := range c.workers {
		_ = syscall.Kill(-w.Process.Pid, syscall.SIGKILL)
		_ = w.Wait()
	}
	for _, namespace := range append(c.namespaces(), c.tag) {
		for range 50 {
			pids := inNamespace(namespace)
			if len(pids) == 0 {
				break
			}
			signalAll(pids, syscall.SIGKILL)
			<-time.After(20 * time.Millisecond)
		}
		_ = exec.CommandContext(context.Background(), "ip", "netns", "delete", namespace).Run() // its processes have ended
	}
}

func (c *cluster) namespaces() (names []string) {
	for _, n := range c.nodes {
		names = append(names, n.namespace)
	}
	return names
}

// inNamespace returns the processes in a namespace of this program.
func inNamespace(namespace string) (pids []int) {
	text, err := exec.CommandContext(context.Background(), "ip", "netns", "pids", namespace).Output()
	if err != nil {
		return nil // it does not exist
	}
	for field := range strings.FieldsSeq(string(text)) {
		if pid, err := strconv.Atoi(field); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func signalAll(pids []int, s syscall.Signal) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, s) // it may have ended
	}
}
