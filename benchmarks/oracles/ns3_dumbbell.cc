// N TCP senders through one router into one receiver, in ns-3; for benchmarks/oracle_tcp.py.
//   ns3_dumbbell TYPE SENDERS SECONDS PACKETS MARK    TYPE: TcpLinuxReno, TcpCubic, TcpDctcp; MARK: packets, 0 for none
// Links of 1 Gbit/s and 20 µs. Prints one JSON line.
#include <chrono>
#include <iostream>
#include <string>

#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

using namespace ns3;

static uint64_t drops = 0;
static void CountDrop(Ptr<const QueueDiscItem>) { ++drops; }

int main(int argc, char* argv[]) {
    const std::string type = argv[1];
    const int senders = std::stoi(argv[2]);
    const double seconds = std::stod(argv[3]);
    const std::string limit = std::string(argv[4]) + "p";
    const int mark = std::stoi(argv[5]);
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", StringValue("ns3::" + type));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(1460));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(1));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(1 << 24));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(1 << 24));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(10)));

    NodeContainer hosts, router;
    hosts.Create(senders + 1);
    router.Create(1);
    InternetStackHelper().InstallAll();
    PointToPointHelper cable;
    cable.SetDeviceAttribute("DataRate", StringValue("1Gbps"));
    cable.SetChannelAttribute("Delay", StringValue("20us"));
    cable.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize", StringValue("2p"));
    TrafficControlHelper control;
    if (mark > 0) {
        control.SetRootQueueDisc("ns3::RedQueueDisc", "MaxSize", StringValue(limit), "MinTh", DoubleValue(mark), "MaxTh",
                                 DoubleValue(mark), "QW", DoubleValue(1.0), "UseEcn", BooleanValue(true), "UseHardDrop",
                                 BooleanValue(false), "LinkBandwidth", StringValue("1Gbps"), "LinkDelay", StringValue("20us"));
    } else {
        control.SetRootQueueDisc("ns3::FifoQueueDisc", "MaxSize", StringValue(limit));
    }
    Ipv4AddressHelper addresses;
    Ipv4Address target;
    for (int host = 0; host <= senders; ++host) {
        NetDeviceContainer devices = cable.Install(hosts.Get(host), router.Get(0));
        TrafficControlHelper ample;
        ample.SetRootQueueDisc("ns3::FifoQueueDisc", "MaxSize", StringValue("100000p"));
        ample.Install(devices.Get(0));
        if (host == 0) {
            QueueDiscContainer discs = control.Install(devices.Get(1));
            discs.Get(0)->TraceConnectWithoutContext("Drop", MakeCallback(&CountDrop));
        } else {
            ample.Install(devices.Get(1));
        }
        addresses.SetBase(("10.0." + std::to_string(host) + ".0").c_str(), "255.255.255.0");
        Ipv4InterfaceContainer given = addresses.Assign(devices);
        if (host == 0) target = given.GetAddress(0);
    }
    Ipv4GlobalRoutingHelper::PopulateRoutingTables();
    PacketSinkHelper sink("ns3::TcpSocketFactory", InetSocketAddress(Ipv4Address::GetAny(), 5000));
    ApplicationContainer sinks = sink.Install(hosts.Get(0));
    for (int host = 1; host <= senders; ++host) {
        BulkSendHelper bulk("ns3::TcpSocketFactory", InetSocketAddress(target, 5000));
        bulk.Install(hosts.Get(host)).Start(MicroSeconds(10 * host));
    }
    Simulator::Stop(Seconds(seconds));
    const auto start = std::chrono::steady_clock::now();
    Simulator::Run();
    const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::cout << "{\"goodput_bps\": " << DynamicCast<PacketSink>(sinks.Get(0))->GetTotalRx() * 8.0 / seconds
              << ", \"drops\": " << drops << ", \"events\": " << Simulator::GetEventCount() << ", \"wall_s\": " << wall << "}"
              << std::endl;
    Simulator::Destroy();
    return 0;
}
