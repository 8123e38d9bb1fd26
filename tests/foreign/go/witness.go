// Runs the DCP agent of gocbcore as it is told on stdin, and says on stdout what the agent delivered.
//
// It understands a part of what java/Witness.java does, and answers in the same words. A rollback is said, and the
// stream is then asked for again from there, as an application would.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
)

const patience = 60 * time.Second
const endless = gocbcore.SeqNo(0xffffffffffffffff)

type fields map[string]any

type offset struct {
	VBucket       uint16         `json:"vbucket"`
	VBUUID        string         `json:"vbuuid"`
	Seqno         gocbcore.SeqNo `json:"seqno"`
	SnapshotStart gocbcore.SeqNo `json:"snapshot_start"`
	SnapshotEnd   gocbcore.SeqNo `json:"snapshot_end"`
}

type command struct {
	Do          string   `json:"do"`
	Client      string   `json:"client"`
	Host        string   `json:"host"`
	Port        int      `json:"port"`
	User        string   `json:"user"`
	Password    string   `json:"password"`
	Bucket      string   `json:"bucket"`
	FlowBytes   int      `json:"flow_bytes"`
	Expiry      bool     `json:"expiry"`
	Collections bool     `json:"collections"`
	Compression bool     `json:"compression"`
	To          string   `json:"to"`
	Offsets     []offset `json:"offsets"`
}

var out sync.Mutex

func say(client, event string, more fields) {
	line := fields{"client": client, "event": event}
	for name, value := range more {
		line[name] = value
	}
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	out.Lock()
	defer out.Unlock()
	if _, err := os.Stdout.Write(append(text, '\n')); err != nil {
		os.Exit(1)
	}
}

// A client is an agent and what it knows of its streams.
type client struct {
	name     string
	agent    *gocbcore.DCPAgent
	vbuckets int
	streams  map[uint16]*stream
}

// A stream says what the agent delivers for a vbucket. Its methods are called one after the other.
type stream struct {
	client  *client
	vbucket uint16
	vbuuid  gocbcore.VbUUID
	start   uint64
	end     uint64
	ended   chan struct{}
}

func (s *stream) change(event string, seqno, rev, cas uint64, key, value []byte, more fields) {
	more["vbucket"], more["seqno"], more["revision"], more["cas"] = s.vbucket, seqno, rev, strconv.FormatUint(cas, 10)
	more["key"], more["bytes"], more["crc32"] = string(key), len(value), crc32.ChecksumIEEE(value)
	more["vbuuid"] = strconv.FormatUint(uint64(s.vbuuid), 10)
	more["snapshot_start"], more["snapshot_end"] = s.start, s.end
	say(s.client.name, event, more)
}

func (s *stream) SnapshotMarker(marker gocbcore.DcpSnapshotMarker) {
	s.start, s.end = marker.StartSeqNo, marker.EndSeqNo
	say(s.client.name, "snapshot", fields{"vbucket": s.vbucket, "start": s.start, "end": s.end,
		"flags": uint32(marker.SnapshotType)})
}

func (s *stream) Mutation(it gocbcore.DcpMutation) {
	s.change("mutation", it.SeqNo, it.RevNo, it.Cas, it.Key, it.Value, fields{"flags": it.Flags, "expiry": it.Expiry})
}

func (s *stream) Deletion(it gocbcore.DcpDeletion) {
	s.change("deletion", it.SeqNo, it.RevNo, it.Cas, it.Key, it.Value, fields{})
}

func (s *stream) Expiration(it gocbcore.DcpExpiration) {
	s.change("expiration", it.SeqNo, it.RevNo, it.Cas, it.Key, nil, fields{})
}

func (s *stream) End(_ gocbcore.DcpStreamEnd, err error) {
	reason := "OK"
	if err != nil {
		reason = err.Error()
	}
	say(s.client.name, "stream end", fields{"vbucket": s.vbucket, "reason": reason})
	close(s.ended)
}

func (s *stream) unwanted(what string) {
	say(s.client.name, "failure", fields{"vbucket": s.vbucket, "why": "a message nobody asked for: " + what})
}

func (s *stream) CreateCollection(gocbcore.DcpCollectionCreation) { s.unwanted("create collection") }
func (s *stream) DeleteCollection(gocbcore.DcpCollectionDeletion) { s.unwanted("delete collection") }
func (s *stream) FlushCollection(gocbcore.DcpCollectionFlush)     { s.unwanted("flush collection") }
func (s *stream) CreateScope(gocbcore.DcpScopeCreation)           { s.unwanted("create scope") }
func (s *stream) DeleteScope(gocbcore.DcpScopeDeletion)           { s.unwanted("delete scope") }
func (s *stream) ModifyCollection(gocbcore.DcpCollectionModification) {
	s.unwanted("modify collection")
}
func (s *stream) OSOSnapshot(gocbcore.DcpOSOSnapshot)     { s.unwanted("out of order snapshot") }
func (s *stream) SeqNoAdvanced(gocbcore.DcpSeqNoAdvanced) { s.unwanted("seqno advanced") }

// done gives a callback's error to who waits for it, and who waits gets an error when it never comes.
func done(start func(finished func(error)) error) error {
	result := make(chan error, 1)
	if err := start(func(err error) { result <- err }); err != nil {
		return err
	}
	select {
	case err := <-result:
		return err
	case <-time.After(patience):
		return errors.New("no answer")
	}
}

func connect(it command) (*client, error) {
	config := gocbcore.DCPAgentConfig{}
	if err := config.FromConnStr(fmt.Sprintf("couchbase://%s:%d", it.Host, it.Port)); err != nil {
		return nil, err
	}
	config.BucketName = or(it.Bucket, "default")
	config.SecurityConfig.Auth = gocbcore.PasswordAuthProvider{
		Username: or(it.User, "Administrator"), Password: or(it.Password, "password")}
	config.DCPConfig.BufferSize = it.FlowBytes
	config.DCPConfig.UseExpiryOpcode = it.Expiry
	config.IoConfig.UseCollections = it.Collections
	config.CompressionConfig.Enabled = it.Compression
	flags := memd.DcpOpenFlagProducer
	if it.Expiry {
		flags |= memd.DcpOpenFlagIncludeDeleteTimes
	}
	agent, err := gocbcore.CreateDcpAgent(&config, "headrace-"+it.Client, flags)
	if err != nil {
		return nil, err
	}
	err = done(func(finished func(error)) error {
		_, err := agent.WaitUntilReady(time.Now().Add(10*time.Second), gocbcore.WaitUntilReadyOptions{},
			func(_ *gocbcore.WaitUntilReadyResult, err error) { finished(err) })
		return err
	})
	if err != nil {
		_ = agent.Close()
		return nil, err
	}
	snapshot, err := agent.ConfigSnapshot()
	if err != nil {
		return nil, err
	}
	vbuckets, err := snapshot.NumVbuckets()
	return &client{name: it.Client, agent: agent, vbuckets: vbuckets, streams: map[uint16]*stream{}}, err
}

func (c *client) seqnos() (map[uint16]gocbcore.SeqNo, error) {
	seqnos := map[uint16]gocbcore.SeqNo{}
	return seqnos, done(func(finished func(error)) error {
		_, err := c.agent.GetVbucketSeqnos(0, memd.VbucketStateActive, gocbcore.GetVbucketSeqnoOptions{},
			func(entries []gocbcore.VbSeqNoEntry, err error) {
				for _, entry := range entries {
					seqnos[entry.VbID] = entry.SeqNo
				}
				finished(err)
			})
		return err
	})
}

func (c *client) open(from offset, end gocbcore.SeqNo) error {
	vbuuid, err := strconv.ParseUint(or(from.VBUUID, "0"), 10, 64)
	if err != nil {
		return err
	}
	s := &stream{client: c, vbucket: from.VBucket, ended: make(chan struct{})}
	err = done(func(finished func(error)) error {
		_, err := c.agent.OpenStream(from.VBucket, memd.DcpStreamAddFlagActiveOnly, gocbcore.VbUUID(vbuuid),
			from.Seqno, end, from.SnapshotStart, from.SnapshotEnd, s, gocbcore.OpenStreamOptions{},
			func(log []gocbcore.FailoverEntry, err error) {
				if err == nil {
					entries := [][2]any{}
					for _, entry := range log {
						entries = append(entries, [2]any{strconv.FormatUint(uint64(entry.VbUUID), 10), entry.SeqNo})
					}
					s.vbuuid = log[0].VbUUID
					say(c.name, "failover log", fields{"vbucket": from.VBucket, "entries": entries})
				}
				finished(err)
			})
		return err
	})
	var rollback gocbcore.DCPRollbackError
	if errors.As(err, &rollback) {
		say(c.name, "rollback", fields{"vbucket": from.VBucket, "seqno": rollback.SeqNo})
		to := rollback.SeqNo
		return c.open(offset{from.VBucket, from.VBUUID, to, to, to}, end)
	}
	if err == nil {
		c.streams[from.VBucket] = s
	}
	return err
}

func (c *client) act(it command) (fields, error) {
	switch it.Do {
	case "stream":
		seqnos := map[uint16]gocbcore.SeqNo{}
		if it.To == "NOW" {
			var err error
			if seqnos, err = c.seqnos(); err != nil {
				return nil, err
			}
		}
		for vbucket := range uint16(c.vbuckets) {
			end := endless
			if it.To == "NOW" {
				end = seqnos[vbucket]
			}
			if err := c.open(offset{VBucket: vbucket}, end); err != nil {
				return nil, fmt.Errorf("vbucket %d: %w", vbucket, err)
			}
		}
		return fields{}, nil
	case "resume":
		for _, from := range it.Offsets {
			if err := c.open(from, endless); err != nil {
				return nil, fmt.Errorf("vbucket %d: %w", from.VBucket, err)
			}
		}
		return fields{}, nil
	case "seqnos":
		seqnos, err := c.seqnos()
		return fields{"seqnos": seqnos}, err
	case "stop":
		for vbucket, s := range c.streams {
			err := done(func(finished func(error)) error {
				_, err := c.agent.CloseStream(vbucket, gocbcore.CloseStreamOptions{}, finished)
				return err
			})
			if err != nil {
				return nil, err
			}
			select {
			case <-s.ended:
			case <-time.After(patience):
				return nil, fmt.Errorf("the stream of vbucket %d never ended", vbucket)
			}
			delete(c.streams, vbucket)
		}
		return fields{}, nil
	case "close":
		return fields{}, c.agent.Close()
	}
	return nil, errors.New("no such command")
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

func main() {
	if os.Getenv("WITNESS_LOG") != "" {
		gocbcore.SetLogger(gocbcore.VerboseStdioLogger())
	}
	clients := map[string]*client{}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var it command
		err := json.Unmarshal(lines.Bytes(), &it)
		var more fields
		if err == nil && it.Do == "connect" {
			var c *client
			if c, err = connect(it); err == nil {
				clients[it.Client] = c
				more = fields{"vbuckets": c.vbuckets}
			}
		} else if err == nil {
			more, err = clients[it.Client].act(it)
		}
		if err != nil {
			say(it.Client, "failed", fields{"doing": it.Do, "why": err.Error()})
		} else {
			say(it.Client, it.Do, more)
		}
	}
}
