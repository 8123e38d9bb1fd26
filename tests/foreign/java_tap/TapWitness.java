/* Runs spymemcached's TapClient against one server, and says on stdout what it delivered, as JSON, a line a message.
 *
 *   TapWitness HOST PORT dump
 *   TapWitness HOST PORT custom DATE VBUCKET,VBUCKET,... FLAG...     flags by their names in TapRequestFlag
 *
 * A date or a list that is - is not sent. To ask for a backfill is a custom request: the class has no more than these two.
 *
 * The last line is {"event": "end"}: the client says that nothing more will come, and whether its operation is complete. What has not ended by itself ends
 * with stdin. Keys and values are in hexadecimal.
 */

import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import net.spy.memcached.TapClient;
import net.spy.memcached.tapmessage.RequestMessage;
import net.spy.memcached.tapmessage.ResponseMessage;
import net.spy.memcached.tapmessage.TapMagic;
import net.spy.memcached.tapmessage.TapOpcode;
import net.spy.memcached.tapmessage.TapRequestFlag;
import net.spy.memcached.tapmessage.TapStream;

public final class TapWitness {
  private static volatile boolean over = false;

  private TapWitness() {}

  public static void main(String[] args) throws Exception {
    TapClient client = new TapClient(new InetSocketAddress(args[0], Integer.parseInt(args[1])));
    TapStream stream = ask(client, args);
    Thread waiter = new Thread(TapWitness::waitForTheEnd);
    waiter.setDaemon(true);
    waiter.start();
    while (!over && client.hasMoreMessages()) {
      ResponseMessage message = client.getNextMessage(200, TimeUnit.MILLISECONDS);
      if (message != null) {
        System.out.println(told(message));
        System.out.flush();
      }
    }
    boolean complete = stream.isCompleted();
    System.out.println("{\"event\": \"end\", \"by_itself\": " + !over + ", \"complete\": " + complete + "}");
    System.out.flush();
    client.shutdown();
    System.exit(0);
  }

  private static TapStream ask(TapClient client, String[] args) throws Exception {
    return args[2].equals("dump") ? client.tapDump("witness") : client.tapCustom("witness", custom(args));
  }

  private static RequestMessage custom(String[] args) {
    RequestMessage message = new RequestMessage();
    message.setMagic(TapMagic.PROTOCOL_BINARY_REQ);
    message.setOpcode(TapOpcode.REQUEST);
    message.setName("witness");
    for (int at = 5; at < args.length; at++) {
      message.setFlags(TapRequestFlag.valueOf(args[at]));
    }
    if (!args[3].equals("-")) {
      message.setBackfill(Long.parseLong(args[3]));
    }
    if (!args[4].equals("-")) {
      String[] listed = args[4].split(",");
      short[] vbuckets = new short[listed.length];
      for (int at = 0; at < listed.length; at++) {
        vbuckets[at] = Short.parseShort(listed[at]);
      }
      message.setVbucketlist(vbuckets);
    }
    return message;
  }

  private static String told(ResponseMessage message) {
    StringBuilder line = new StringBuilder("{\"event\": \"").append(message.getOpcode()).append('"');
    line.append(", \"vbucket\": ").append(message.getVbucket());
    line.append(", \"opaque\": ").append(message.getOpaque());
    line.append(", \"cas\": \"").append(Long.toUnsignedString(message.getCas())).append('"');
    line.append(", \"ttl\": ").append(message.getTTL());
    line.append(", \"key\": \"").append(hex(message.getKey().getBytes(StandardCharsets.UTF_8))).append('"');
    line.append(", \"value\": \"").append(hex(message.getValue())).append('"');
    if (message.getOpcode() == TapOpcode.MUTATION) {
      line.append(", \"flags\": ").append(Integer.toUnsignedString(message.getItemFlags()));
      line.append(", \"expiry\": ").append(Integer.toUnsignedString((int) message.getItemExpiry()));
    }
    return line.append('}').toString();
  }

  private static String hex(byte[] bytes) {
    StringBuilder spelled = new StringBuilder();
    for (byte one : bytes == null ? new byte[0] : bytes) {
      spelled.append(String.format("%02x", one));
    }
    return spelled.toString();
  }

  private static void waitForTheEnd() {
    try {
      while (System.in.read() >= 0) {
        continue;
      }
    } catch (java.io.IOException error) {
      System.err.println(error);
    }
    over = true;
  }
}
