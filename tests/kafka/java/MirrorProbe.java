import java.time.Duration;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.connect.mirror.MirrorClient;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;

/** What a client program of MirrorMaker 2 sees on a cluster: BOOTSTRAP_SERVERS SOURCE_ALIAS GROUP [POLICY_CLASS]; one line for each answer. */
public class MirrorProbe {
    public static void main(String[] words) throws Exception {
        Map<String, Object> properties = new TreeMap<>(Map.of("bootstrap.servers", words[0]));
        if (words.length > 3) {
            properties.put("replication.policy.class", words[3]);
        }
        boolean hasCheckpoints;
        try (MirrorClient client = new MirrorClient(properties)) {
            System.out.println("upstream=" + new TreeSet<>(client.upstreamClusters()));
            System.out.println("hops=" + client.replicationHops(words[1]));
            System.out.println("heartbeats=" + new TreeSet<>(client.heartbeatTopics()));
            System.out.println("checkpoints=" + new TreeSet<>(client.checkpointTopics()));
            hasCheckpoints = client.checkpointTopics().contains(words[1] + ".checkpoints.internal");
            System.out.println("remote=" + new TreeSet<>(client.remoteTopics(words[1])));
        }
        if (!hasCheckpoints) {
            return;
        }
        System.out.println("translated=" + RemoteClusterUtils.translateOffsets(properties, words[1], words[2], Duration.ofSeconds(20)).entrySet().stream()
            .map(entry -> entry.getKey() + "=" + entry.getValue().offset() + "/" + entry.getValue().metadata()).sorted().collect(Collectors.joining(" ")));
    }
}
