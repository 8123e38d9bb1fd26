/* Runs Couchbase's DCP client as it is told on stdin, and says on stdout what the client delivered.
 *
 * Both are JSON, a line a thing. A command names what to do ("do") and for which client ("client"). Commands are done
 * one after the other; each is answered by one line, "event" being its name or "failed", and what the client delivers
 * comes between the answers, in the order in which its listener was called. CAS and vbucket UUID are decimal strings:
 * they need all 64 bits, and Java's numbers are signed.
 *
 *   connect   host port user password bucket flow_bytes mitigate_ms collections no_value xattrs compression controls
 *   stream    from (BEGINNING, NOW) to (INFINITY, NOW) vbuckets
 *   state     says what the client would save; `recover` goes on from that
 *   resume    goes on from offsets: vbucket vbuuid seqno snapshot_start snapshot_end
 *   seqnos    says the high seqnos
 *   stop      closes streams
 *   close     disconnects
 *   drain     as connect; streams all there is, and says how much it was and how long it took
 */

import com.couchbase.client.core.json.Mapper;
import com.couchbase.client.dcp.Client;
import com.couchbase.client.dcp.StreamFrom;
import com.couchbase.client.dcp.StreamTo;
import com.couchbase.client.dcp.config.CompressionMode;
import com.couchbase.client.dcp.events.StreamEndEvent;
import com.couchbase.client.dcp.highlevel.DatabaseChangeListener;
import com.couchbase.client.dcp.highlevel.Deletion;
import com.couchbase.client.dcp.highlevel.DocumentChange;
import com.couchbase.client.dcp.highlevel.FailoverLog;
import com.couchbase.client.dcp.highlevel.FlowControlMode;
import com.couchbase.client.dcp.highlevel.Mutation;
import com.couchbase.client.dcp.highlevel.Rollback;
import com.couchbase.client.dcp.highlevel.SnapshotDetails;
import com.couchbase.client.dcp.highlevel.SnapshotMarker;
import com.couchbase.client.dcp.highlevel.StreamEnd;
import com.couchbase.client.dcp.highlevel.StreamFailure;
import com.couchbase.client.dcp.highlevel.StreamOffset;
import com.couchbase.client.dcp.state.StateFormat;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;
import java.util.zip.CRC32;

public final class Witness {
  private static final Duration PATIENCE = Duration.ofSeconds(60);
  private static final OutputStream OUT = new FileOutputStream(FileDescriptor.out);
  private static final Map<String, Client> CLIENTS = new HashMap<>();

  public static void main(String[] arguments) throws IOException {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      Command command = new Command(Mapper.decodeInto(line, Map.class));
      try {
        say(command.client(), command.text("do", ""), act(command));
      } catch (Throwable why) {
        StringWriter stack = new StringWriter();
        why.printStackTrace(new PrintWriter(stack));
        say(command.client(), "failed", of("doing", command.text("do", ""), "why", stack.toString()));
      }
    }
    System.exit(0); // the client's threads may still run
  }

  @SuppressWarnings("deprecation") // the older way to resume is still in use
  private static Map<String, Object> act(Command command) throws Exception {
    String name = command.client();
    Client client = CLIENTS.get(name);
    switch (command.text("do", "")) {
      case "connect":
        return connect(name, command);
      case "stream":
        client.initializeState(StreamFrom.valueOf(command.text("from", "BEGINNING")),
            StreamTo.valueOf(command.text("to", "INFINITY"))).block(PATIENCE);
        client.startStreaming(command.numbers("vbuckets")).block(PATIENCE);
        return of();
      case "recover": // the way of the older API: the client keeps the positions
        byte[] saved = command.text("state", "").getBytes(StandardCharsets.UTF_8);
        client.recoverState(StateFormat.JSON, saved).block(PATIENCE);
        client.startStreaming().block(PATIENCE);
        return of();
      case "resume": // the way of the newer API: the application keeps them
        client.resumeStreaming(command.offsets()).block(PATIENCE);
        return of();
      case "state":
        return of("state", new String(client.sessionState().export(StateFormat.JSON), StandardCharsets.UTF_8));
      case "seqnos":
        Map<String, Object> seqnos = new LinkedHashMap<>();
        client.getSeqnos().collectList().block(PATIENCE)
            .forEach(it -> seqnos.put(Integer.toString(it.partition()), it.seqno()));
        return of("seqnos", seqnos);
      case "stop":
        client.stopStreaming(command.numbers("vbuckets")).block(PATIENCE);
        return of();
      case "close":
        CLIENTS.remove(name).close();
        return of();
      case "drain":
        return drain(command);
      default:
        throw new IllegalArgumentException("no such command");
    }
  }

  private static Client build(Command command) {
    Client.Builder builder = Client.builder()
        .connectionString("couchbase://" + command.text("host", "127.0.0.1") + ":" + command.number("port", 11210))
        .credentials(command.text("user", "Administrator"), command.text("password", "password"))
        .bucket(command.text("bucket", "default"))
        .userAgent("headrace-witness", "1")
        .collectionsAware(command.is("collections"))
        .noValue(command.is("no_value"))
        .xattrs(command.is("xattrs"))
        .compression(CompressionMode.valueOf(command.text("compression", "ENABLED")));
    // The client's five seconds are too few for 1024 failover logs on a busy machine.
    builder.bootstrapTimeout(Duration.ofMillis(command.number("bootstrap_ms", PATIENCE.toMillis())));
    if (command.number("flow_bytes", 0) > 0) {
      builder.flowControl((int) command.number("flow_bytes", 0));
    }
    if (command.number("mitigate_ms", 0) > 0) {
      builder.mitigateRollbacks(command.number("mitigate_ms", 0), TimeUnit.MILLISECONDS);
    }
    command.controls().forEach((key, value) -> builder.controlParam(key, value));
    return builder.build();
  }

  private static Map<String, Object> connect(String name, Command command) {
    Client client = build(command);
    boolean windowed = command.number("flow_bytes", 0) > 0;
    client.listener(new Listener(name), windowed ? FlowControlMode.AUTOMATIC : FlowControlMode.MANUAL);
    client.connect().block(PATIENCE);
    CLIENTS.put(name, client);
    return of("vbuckets", client.numPartitions());
  }

  /* Takes all that there is now, by the interface that costs the client least, and says how long that took. */
  private static Map<String, Object> drain(Command command) throws Exception {
    LongAdder mutations = new LongAdder();
    LongAdder deletions = new LongAdder();
    LongAdder bytes = new LongAdder();
    long[] firstAndLast = new long[2];
    try (Client client = build(command)) {
      client.dataEventHandler((flow, event) -> {
        long now = System.nanoTime();
        if (firstAndLast[0] == 0) {
          firstAndLast[0] = now;
        }
        firstAndLast[1] = now;
        (event.getByte(1) == 0x57 ? mutations : deletions).increment();
        bytes.add(event.readableBytes());
        flow.ack(event);
        event.release();
      });
      client.controlEventHandler((flow, event) -> {
        flow.ack(event);
        event.release();
      });
      client.connect().block(PATIENCE);
      CountDownLatch ends = new CountDownLatch(client.numPartitions());
      client.systemEventHandler(event -> {
        if (event instanceof StreamEndEvent) {
          ends.countDown();
        }
      });
      client.initializeState(StreamFrom.BEGINNING, StreamTo.NOW).block(PATIENCE);
      long begun = System.nanoTime();
      client.startStreaming().block(PATIENCE);
      boolean whole = ends.await(command.number("seconds_max", 300), TimeUnit.SECONDS);
      long ended = System.nanoTime();
      return of("whole", whole, "unended", ends.getCount(), "mutations", mutations.sum(),
          "deletions", deletions.sum(), "bytes", bytes.sum(),
          "seconds", (ended - begun) / 1e9, "seconds_of_events", (firstAndLast[1] - firstAndLast[0]) / 1e9);
    }
  }

  private static void say(String client, String event, Map<String, Object> more) {
    Map<String, Object> line = of("client", client, "event", event);
    line.putAll(more);
    byte[] text = (Mapper.encodeAsString(line) + "\n").getBytes(StandardCharsets.UTF_8);
    synchronized (OUT) {
      try {
        OUT.write(text);
      } catch (IOException nobodyReads) {
        System.exit(1);
      }
    }
  }

  private static Map<String, Object> of(Object... pairs) {
    Map<String, Object> map = new LinkedHashMap<>();
    for (int i = 0; i < pairs.length; i += 2) {
      map.put((String) pairs[i], pairs[i + 1]);
    }
    return map;
  }

  private static Map<String, Object> described(StreamOffset offset) {
    return of("vbuuid", Long.toUnsignedString(offset.getVbuuid()), "seqno", offset.getSeqno(),
        "snapshot_start", offset.getSnapshot().getStartSeqno(), "snapshot_end", offset.getSnapshot().getEndSeqno());
  }

  /* Says everything that the client calls it for. */
  private static final class Listener implements DatabaseChangeListener {
    private final String name;

    Listener(String name) {
      this.name = name;
    }

    @Override
    public void onMutation(Mutation mutation) {
      change("mutation", mutation, of("flags", Integer.toUnsignedLong(mutation.getFlagsAsInt()),
          "expiry", Integer.toUnsignedLong(mutation.getExpiry())));
    }

    @Override
    public void onDeletion(Deletion deletion) {
      change(deletion.isDueToExpiration() ? "expiration" : "deletion", deletion, of());
    }

    private void change(String event, DocumentChange change, Map<String, Object> more) {
      byte[] content = change.getContent();
      CRC32 sum = new CRC32();
      sum.update(content);
      more.putAll(of("vbucket", change.getVbucket(), "key", change.getKey(), "bytes", content.length,
          "crc32", sum.getValue(), "cas", Long.toUnsignedString(change.getCas()), "revision", change.getRevision()));
      more.putAll(described(change.getOffset()));
      say(name, event, more);
      change.flowControlAck();
    }

    @Override
    public void onSnapshot(SnapshotDetails snapshot) {
      say(name, "snapshot", of("vbucket", snapshot.getVbucket(), "start", snapshot.getMarker().getStartSeqno(),
          "end", snapshot.getMarker().getEndSeqno(), "flags", snapshot.getFlagsAsInt()));
    }

    @Override
    public void onFailoverLog(FailoverLog log) {
      List<Object> entries = new ArrayList<>();
      log.getEntries().forEach(it -> entries.add(List.of(Long.toUnsignedString(it.getUuid()), it.getSeqno())));
      say(name, "failover log", of("vbucket", log.getVbucket(), "entries", entries));
    }

    @Override
    public void onRollback(Rollback rollback) {
      say(name, "rollback", of("vbucket", rollback.getVbucket(), "seqno", rollback.getSeqno(),
          "asked", described(rollback.getFailedStartOffset())));
      rollback.resume();
    }

    @Override
    public void onStreamEnd(StreamEnd end) {
      say(name, "stream end", of("vbucket", end.getVbucket(), "reason", end.getReason().name()));
    }

    @Override
    public void onFailure(StreamFailure failure) {
      say(name, "failure", of("vbucket", failure.getVbucket(), "why", failure.getCause().toString()));
    }
  }

  /* A line of stdin, with what it leaves out. */
  private static final class Command {
    private final Map<?, ?> fields;

    Command(Map<?, ?> fields) {
      this.fields = fields;
    }

    String client() {
      return text("client", "");
    }

    String text(String key, String otherwise) {
      return fields.containsKey(key) ? (String) fields.get(key) : otherwise;
    }

    long number(String key, long otherwise) {
      return fields.containsKey(key) ? ((Number) fields.get(key)).longValue() : otherwise;
    }

    boolean is(String key) {
      return Boolean.TRUE.equals(fields.get(key));
    }

    List<Integer> numbers(String key) {
      List<Integer> numbers = new ArrayList<>();
      if (fields.containsKey(key)) {
        ((List<?>) fields.get(key)).forEach(it -> numbers.add(((Number) it).intValue()));
      }
      return numbers;
    }

    Map<String, Object> controls() {
      Map<String, Object> controls = new LinkedHashMap<>();
      if (fields.containsKey("controls")) {
        ((Map<?, ?>) fields.get("controls")).forEach((key, value) -> controls.put((String) key, value));
      }
      return controls;
    }

    Map<Integer, StreamOffset> offsets() {
      Map<Integer, StreamOffset> offsets = new HashMap<>();
      for (Object each : (List<?>) fields.get("offsets")) {
        Command offset = new Command((Map<?, ?>) each);
        SnapshotMarker snapshot =
            new SnapshotMarker(offset.number("snapshot_start", 0), offset.number("snapshot_end", 0));
        offsets.put((int) offset.number("vbucket", 0), new StreamOffset(
            Long.parseUnsignedLong(offset.text("vbuuid", "0")), offset.number("seqno", 0), snapshot, 0));
      }
      return offsets;
    }
  }
}
