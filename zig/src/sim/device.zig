//! A device whose time, order and faults come from a seed: the same calls as the real ones (io/device.zig), the real
//! bytes of a file or of memory, and none of the real world's chance. The table below lists the faults.
//!
//! Time is virtual: each attempt is due some microseconds after it began, `poll(.one)` moves the clock to the first that
//! is due, `poll(.none)` by a little. Until a read ends its buffer holds poison, so an early access sees nonsense.
const std = @import("std");
const base = @import("base");
const io = @import("io");
const assert = std.debug.assert;
const linux = std.os.linux;
const E = linux.E;

// ---- faults ----
//
// Faults of a simulated device, drawn from a seed.
//
// A set of faults is a 32-bit mask (`velo_open_options.simulated_faults`):
//
//     bit  mask         name         what happens                                                       the caller sees
//     0    0x00000001   late         some reads take 10 to 100 times as long                            nothing but time
//     1    0x00000002   reordered    reads end in another order than they were submitted                another order
//     2    0x00000004   short        some attempts bring only their first segment                          nothing: continued
//     3    0x00000008   eio_once     some reads fail with EIO; the same read again succeeds             `.io`, EIO
//     4    0x00000010   eio_forever  some pages always fail with EIO                                    `.io`, EIO
//     5    0x00000020   again        some attempts are refused with EAGAIN or EINTR, up to three times  nothing: repeated
//     6    0x00000040   bit_flip     in some pages one bit is wrong, always the same one                `.ok`, wrong bytes
//     7    0x00000080   wrong_page   some reads bring another page's bytes; the same read again is fine `.ok`, wrong bytes
//     31   0x80000000   swarm        the seed turns a third of the faults above off and scales the
//                                    rates of the others from an eighth to eightfold
//
// Which pages are bad for good (4, 6) depends on seed and page alone, so that devices with one seed agree. Which reads
// meet the passing faults depends on the device's own sequence.

pub const Fault = enum(u5) {
    late = 0,
    reordered = 1,
    short = 2,
    eio_once = 3,
    eio_forever = 4,
    again = 5,
    bit_flip = 6,
    wrong_page = 7,

    pub fn mask(fault: Fault) u32 {
        return @as(u32, 1) << @intFromEnum(fault);
    }
};

pub const fault_count = std.enums.values(Fault).len;
pub const all: u32 = (1 << fault_count) - 1;
pub const swarm: u32 = 1 << 31;

/// Faults are bound to pieces of this size, whatever the sizes of the reads.
pub const page_size = 4096;

/// Chances out of `rate_one`, without swarm.
const rate_one = 1024;
const rates_default = std.enums.directEnumArray(Fault, u32, 0, .{
    .late = 64,
    .reordered = rate_one,
    .short = 96,
    .eio_once = 48,
    .eio_forever = 16,
    .again = 96,
    .bit_flip = 16,
    .wrong_page = 48,
});

pub const Plan = struct {
    seed: u64,
    /// 0 where a fault is off.
    rates: [fault_count]u32 = @splat(0),

    pub fn init(seed: u64, set: u32) Plan {
        var plan: Plan = .{ .seed = seed };
        var prng = base.Prng.init(seed ^ 0x5a17_fa17);
        for (std.enums.values(Fault)) |fault| {
            // Drawn for every fault, so that adding one to the set does not change the others.
            const off = prng.below(3) == 0;
            const scale = prng.below(7);
            if (set & fault.mask() == 0) continue;
            var rate = rates_default[@intFromEnum(fault)];
            if (set & swarm != 0) {
                if (off) continue;
                rate = @max(1, rate * (@as(u32, 1) << @intCast(scale)) / 8);
            }
            // No fault hits more than half of all reads, or a run would see nothing else.
            plan.rates[@intFromEnum(fault)] = if (fault == .reordered) rate_one else @min(rate, rate_one / 2);
        }
        return plan;
    }

    pub fn on(plan: *const Plan, fault: Fault) bool {
        return plan.rates[@intFromEnum(fault)] > 0;
    }

    /// Whether a passing fault happens now.
    pub fn strikes(plan: *const Plan, fault: Fault, prng: *base.Prng) bool {
        if (!plan.on(fault)) return false;
        return prng.below(rate_one) < plan.rates[@intFromEnum(fault)];
    }

    /// Whether a lasting fault sits in this page; then a number that is always the same for it.
    pub fn sits_in(plan: *const Plan, fault: Fault, page: u64) ?u64 {
        if (!plan.on(fault)) return null;
        var mix = std.Random.SplitMix64.init(plan.seed +% page *% 0x9e3779b97f4a7c15 +% (@as(u64, @intFromEnum(fault)) << 56));
        if (mix.next() % rate_one >= plan.rates[@intFromEnum(fault)]) return null;
        return mix.next();
    }
};

// ---- device ----

const poison: u8 = 0xaa;
/// One poll that does not wait.
const poll_us = 10;
const latency_min_us = 50;
const latency_spread_us = 100;
/// Attempts of one read that passing faults may spoil, fewer than the retries that a device must make.
const spoiled_max = 3;
/// Reads that a passing fault struck lately and spares next time.
const spared_count = 64;

comptime {
    assert(spoiled_max < io.retries_max);
}

const Attempt = struct {
    due_us: u64,
    /// Of those due at the same time the first begun is the first to end.
    sequence: u64,
    read: *io.Read,

    fn order(_: void, a: Attempt, b: Attempt) std.math.Order {
        const by_time = std.math.order(a.due_us, b.due_us);
        return if (by_time == .eq) std.math.order(a.sequence, b.sequence) else by_time;
    }
};

const Source = union(enum) { file: std.posix.fd_t, memory: []const u8, none };

pub const SimulatedDevice = struct {
    pub const kind: io.Kind = .simulated;

    sources: [io.file_count]Source,
    plan: Plan,
    prng: base.Prng,
    queue_depth: u32,
    queue: io.Queue = .{},
    /// Begun, ordered by when they are due; room for `queue_depth` from the start.
    begun: std.PriorityQueue(Attempt, void, Attempt.order),
    clock_us: u64 = 0,
    last_due_us: u64 = 0,
    sequence: u64 = 0,
    spared: [spared_count]u64 = @splat(std.math.maxInt(u64)),
    spared_next: u32 = 0,
    /// The number of times that each fault struck.
    injected: [fault_count]u64 = @splat(0),

    pub fn init(allocator: std.mem.Allocator, options: io.Options) io.InitError!SimulatedDevice {
        const first: Source = if (options.file) |file| .{ .file = file } else .none;
        const second: Source = if (options.second_file) |file| .{ .file = file } else .none;
        return init_source(allocator, options, .{ first, second });
    }

    /// Over bytes instead of a file; the files of `options` are not used.
    pub fn init_memory(allocator: std.mem.Allocator, options: io.Options, content: []const u8) io.InitError!SimulatedDevice {
        return init_source(allocator, options, .{ .{ .memory = content }, .none });
    }

    fn init_source(allocator: std.mem.Allocator, options: io.Options, sources: [io.file_count]Source) io.InitError!SimulatedDevice {
        assert(options.queue_depth > 0);
        assert(options.queue_depth <= io.queue_depth_max);
        var device: SimulatedDevice = .{
            .sources = sources,
            .plan = .init(options.simulated_seed, options.simulated_faults),
            .prng = .init(options.simulated_seed),
            .queue_depth = options.queue_depth,
            .begun = .init(allocator, {}),
        };
        try device.begun.ensureTotalCapacity(options.queue_depth);
        return device;
    }

    pub fn deinit(device: *SimulatedDevice) void {
        device.drain();
        device.begun.deinit();
        device.* = undefined;
    }

    pub fn submit(device: *SimulatedDevice, read: *io.Read) void {
        read.verify();
        @memset(read.buffer[0..read.length], poison);
        device.queue.push(read);
    }

    pub fn flush(device: *SimulatedDevice) void {
        while (device.begun.count() < device.queue_depth) device.begin(device.queue.pop() orelse return);
    }

    pub fn poll(device: *SimulatedDevice, done: []*io.Read, wait: io.Wait) usize {
        assert(done.len > 0);
        device.flush();
        device.clock_us += poll_us;
        var count: usize = 0;
        while (count < done.len) {
            const first = device.begun.peek() orelse break;
            if (first.due_us > device.clock_us) {
                if (wait == .none or count > 0) break;
                device.clock_us = first.due_us;
            }
            const read = device.begun.remove().read;
            switch (io.advance(read, device.attempt(read))) {
                .again => device.queue.push_front(read),
                .done => {
                    done[count] = read;
                    count += 1;
                },
            }
            device.flush();
        }
        return count;
    }

    pub fn in_flight(device: *const SimulatedDevice) u32 {
        return device.queue.count + @as(u32, @intCast(device.begun.count()));
    }

    pub fn drain(device: *SimulatedDevice) void {
        device.queue.cancel();
        while (device.begun.removeOrNull()) |entry| {
            if (io.advance(entry.read, device.attempt(entry.read)) == .again) entry.read.status = .canceled;
        }
    }

    fn begin(device: *SimulatedDevice, read: *io.Read) void {
        var latency_us = latency_min_us + device.prng.below(latency_spread_us);
        if (device.strikes(.late)) latency_us *= 10 + device.prng.below(90);
        var due_us = device.clock_us + latency_us;
        if (device.plan.on(.reordered)) {
            if (due_us < device.last_due_us) device.tally(.reordered);
        } else due_us = @max(due_us, device.last_due_us);
        device.last_due_us = @max(due_us, device.last_due_us);
        device.begun.add(.{ .due_us = due_us, .sequence = device.sequence, .read = read }) catch unreachable; // has room
        device.sequence += 1;
    }

    /// The return value of the system: a byte count, or a negative errno.
    fn attempt(device: *SimulatedDevice, read: *io.Read) i32 {
        const first_page = read.attempt_offset() / page_size;
        const last_page = (read.offset + read.length - 1) / page_size;
        for (first_page..last_page + 1) |page| {
            if (device.plan.sits_in(.eio_forever, place_of(read.file, page)) == null) continue;
            device.tally(.eio_forever);
            return negative(.IO);
        }
        if (device.strikes_once(.eio_once, read)) return negative(.IO);
        const may_spoil = read.retry_count < spoiled_max;
        if (may_spoil and device.strikes(.again)) return negative(if (device.prng.boolean()) .AGAIN else .INTR);

        var offset = read.attempt_offset();
        if (device.source_size(read) >= 2 * @as(u64, read.length) and device.strikes_once(.wrong_page, read)) {
            offset = if (offset >= read.length) offset - read.length else offset + read.length;
        }
        const buffer = read.attempt_buffer()[0..read.attempt_length()];
        const result = device.fetch(read, offset, buffer);
        if (result <= 0) return result;
        var length: u32 = @intCast(result);
        if (may_spoil and device.strikes(.short)) {
            length = @intCast(1 + device.prng.below(length));
            // Mostly whole sectors, as from a drive; sometimes any number, as from a file system in user space.
            if (device.prng.below(4) > 0 and length > io.sector_size) length -= length % io.sector_size;
            // Bytes of an earlier attempt stay.
            const known = read.bytes -| read.attempt_start;
            if (known < buffer.len) @memset(buffer[@max(length, known)..], poison);
        }
        device.flip_bits(read.file, offset, buffer[0..length]);
        return @intCast(length);
    }

    fn source_of(device: *const SimulatedDevice, read: *const io.Read) Source {
        return if (read.fd) |fd| .{ .file = fd } else device.sources[read.file];
    }

    fn fetch(device: *const SimulatedDevice, read: *const io.Read, offset: u64, buffer: []u8) i32 {
        switch (device.source_of(read)) {
            .file => |file| while (true) {
                const returned = linux.pread(file, buffer.ptr, buffer.len, @intCast(offset));
                if (linux.E.init(returned) == .INTR) continue;
                return @intCast(@as(isize, @bitCast(returned)));
            },
            .memory => |content| {
                if (offset >= content.len) return 0;
                const length = @min(buffer.len, content.len - offset);
                @memcpy(buffer[0..length], content[offset..][0..length]);
                return @intCast(length);
            },
            .none => unreachable, // no file was requested that the device was not given
        }
    }

    fn source_size(device: *const SimulatedDevice, read: *const io.Read) u64 {
        switch (device.source_of(read)) {
            .file => |file| {
                const stat = std.posix.fstat(file) catch return 0;
                return @intCast(stat.size);
            },
            .memory => |content| return content.len,
            .none => return 0,
        }
    }

    fn flip_bits(device: *SimulatedDevice, file: u1, offset: u64, bytes: []u8) void {
        if (!device.plan.on(.bit_flip)) return;
        for (offset / page_size..(offset + bytes.len - 1) / page_size + 1) |page| {
            const number = device.plan.sits_in(.bit_flip, place_of(file, page)) orelse continue;
            const at = page * page_size + number % page_size;
            if (at < offset or at >= offset + bytes.len) continue;
            bytes[at - offset] ^= @as(u8, 1) << @intCast(number >> 61);
            device.tally(.bit_flip);
        }
    }

    fn strikes(device: *SimulatedDevice, fault: Fault) bool {
        if (!device.plan.strikes(fault, &device.prng)) return false;
        device.tally(fault);
        return true;
    }

    /// As `strikes`, but it spares a read that was struck lately, so that the same read again succeeds.
    fn strikes_once(device: *SimulatedDevice, fault: Fault, read: *const io.Read) bool {
        if (!device.plan.on(fault)) return false;
        if (std.mem.indexOfScalar(u64, &device.spared, place_of(read.file, read.offset)) != null) return false;
        if (!device.strikes(fault)) return false;
        device.spared[device.spared_next] = place_of(read.file, read.offset);
        device.spared_next = (device.spared_next + 1) % spared_count;
        return true;
    }

    fn tally(device: *SimulatedDevice, fault: Fault) void {
        device.injected[@intFromEnum(fault)] += 1;
    }

    pub fn injected_count(device: *const SimulatedDevice, fault: Fault) u64 {
        return device.injected[@intFromEnum(fault)];
    }
};

/// Pages and offsets of the second file differ from those of the first.
fn place_of(file: u1, number: u64) u64 {
    return number | @as(u64, file) << 63;
}

fn negative(e: E) i32 {
    return -@as(i32, @intFromEnum(e));
}

comptime {
    io.check_device(SimulatedDevice);
}

test "the rates follow the set, and swarm follows the seed" {
    const none = Plan.init(1, 0);
    const one = Plan.init(1, Fault.short.mask());
    for (std.enums.values(Fault)) |fault| {
        try std.testing.expect(!none.on(fault));
        try std.testing.expectEqual(fault == .short, one.on(fault));
    }
    var off_counts: [fault_count]u32 = @splat(0);
    for (0..300) |seed| {
        const plan = Plan.init(seed, all | swarm);
        for (std.enums.values(Fault)) |fault| off_counts[@intFromEnum(fault)] += @intFromBool(!plan.on(fault));
    }
    for (off_counts) |count| {
        try std.testing.expect(count > 50);
        try std.testing.expect(count < 150);
    }
}

test "lasting faults sit in the promised share of pages" {
    const plan = Plan.init(5, Fault.bit_flip.mask());
    var count: u32 = 0;
    for (0..100_000) |page| {
        const number = plan.sits_in(.bit_flip, page) orelse continue;
        try std.testing.expectEqual(number, plan.sits_in(.bit_flip, page).?);
        count += 1;
    }
    const expected = 100_000 * 16 / 1024;
    try std.testing.expect(count > expected * 8 / 10);
    try std.testing.expect(count < expected * 12 / 10);
}

const testing = std.testing;

const page_count = 256;

/// A device over memory with known bytes, and a read per page.
const Rig = struct {
    content: []u8,
    buffers: []align(page_size) u8,
    reads: [page_count]io.Read = undefined,
    device: SimulatedDevice,
    /// Pages in the order in which their reads ended.
    order: [page_count]u32 = undefined,

    fn init(seed: u64, set: u32) !*Rig {
        const rig = try testing.allocator.create(Rig);
        rig.content = try testing.allocator.alloc(u8, page_count * page_size);
        for (rig.content, 0..) |*byte, i| byte.* = @truncate((i *% 0x9e3779b97f4a7c15) >> 56);
        rig.buffers = try testing.allocator.alignedAlloc(u8, .fromByteUnits(page_size), page_count * page_size);
        rig.device = try SimulatedDevice.init_memory(testing.allocator, .{
            .file = -1,
            .queue_depth = 32,
            .buffers = rig.buffers,
            .simulated_seed = seed,
            .simulated_faults = set,
        }, rig.content);
        for (&rig.reads, 0..) |*read, page| read.* = .{
            .offset = page * page_size,
            .buffer = @alignCast(rig.buffers.ptr + page * page_size),
            .length = page_size,
            .context = page,
        };
        return rig;
    }

    fn deinit(rig: *Rig) void {
        rig.device.deinit();
        testing.allocator.free(rig.buffers);
        testing.allocator.free(rig.content);
        testing.allocator.destroy(rig);
    }

    fn read_all(rig: *Rig) !void {
        for (&rig.reads) |*read| rig.device.submit(read);
        var ended: usize = 0;
        var done: [8]*io.Read = undefined;
        while (rig.device.in_flight() > 0) {
            const wait: io.Wait = if (ended % 2 == 0) .one else .none;
            const count = rig.device.poll(&done, wait);
            if (wait == .one) try testing.expect(count > 0);
            for (done[0..count]) |read| {
                rig.order[ended] = @intCast(read.context);
                ended += 1;
            }
        }
        try testing.expectEqual(page_count, ended);
    }

    fn page_bytes(rig: *const Rig, i: usize) []const u8 {
        return rig.content[i * page_size ..][0..page_size];
    }

    fn is_right(rig: *const Rig, i: usize) bool {
        const read = &rig.reads[i];
        return read.status == .ok and std.mem.eql(u8, read.data(), rig.page_bytes(i));
    }

    fn right_count(rig: *const Rig) u32 {
        var count: u32 = 0;
        for (0..page_count) |i| count += @intFromBool(rig.is_right(i));
        return count;
    }
};

test "without faults it passes the suite of all devices" {
    try io.conformance.Suite(SimulatedDevice).run(testing.random_seed);
    try io.conformance.compare(SimulatedDevice, io.Threads, testing.random_seed);
}

test "late, reordered, short and refused attempts stay inside the device" {
    const hidden = [_]Fault{ .late, .reordered, .short, .again };
    var set: u32 = 0;
    for (hidden) |fault| set |= fault.mask();
    for (0..20) |i| {
        const seed = testing.random_seed +% i;
        errdefer std.debug.print("simulated device: seed={d}\n", .{seed});
        var rig = try Rig.init(seed, set);
        defer rig.deinit();
        try rig.read_all();
        try testing.expectEqual(page_count, rig.right_count());
        for (hidden) |fault| try testing.expect(rig.device.injected_count(fault) > 0);
        try testing.expect(!std.sort.isSorted(u32, &rig.order, {}, std.sort.asc(u32)));
    }
}

test "no more reads than the depth are begun, and all of them are" {
    const rig = try Rig.init(6, Fault.late.mask() | Fault.reordered.mask() | Fault.short.mask() | Fault.again.mask());
    defer rig.deinit();
    const depth = rig.device.queue_depth;
    for (rig.reads[0 .. depth + 9]) |*read| rig.device.submit(read);
    try testing.expectEqual(0, rig.device.begun.count());
    rig.device.flush();
    try testing.expectEqual(depth, rig.device.begun.count());
    var ended: u32 = 0;
    var done: [4]*io.Read = undefined;
    while (rig.device.in_flight() > 0) {
        ended += @intCast(rig.device.poll(&done, .one));
        try testing.expectEqual(@min(depth, depth + 9 - ended), rig.device.begun.count());
    }
}

test "in order unless it was asked to reorder, late or not" {
    var rig = try Rig.init(testing.random_seed, Fault.late.mask());
    defer rig.deinit();
    try rig.read_all();
    try testing.expect(std.sort.isSorted(u32, &rig.order, {}, std.sort.asc(u32)));
}

test "EIO once: the same read again succeeds" {
    var rig = try Rig.init(testing.random_seed, Fault.eio_once.mask());
    defer rig.deinit();
    var failed_count: u32 = 0;
    var rounds: u32 = 0;
    while (failed_count == 0) : (rounds += 1) {
        try testing.expect(rounds < 20);
        try rig.read_all();
        for (&rig.reads, 0..) |*read, i| {
            if (read.status == .ok) {
                try testing.expect(rig.is_right(i));
                continue;
            }
            failed_count += 1;
            try testing.expectEqual(.io, read.status);
            try testing.expectEqual(@as(i32, @intFromEnum(std.os.linux.E.IO)), read.errno);
            rig.device.submit(read);
            var done: [1]*io.Read = undefined;
            try testing.expectEqual(1, rig.device.poll(&done, .one));
            try testing.expect(rig.is_right(i));
        }
    }
}

test "EIO forever and flipped bits sit in the same pages, for every device with the seed" {
    const seed = testing.random_seed;
    errdefer std.debug.print("simulated device: seed={d}\n", .{seed});
    var bad: u32 = 0;
    for (0..8) |i| {
        const set = Fault.eio_forever.mask() | Fault.bit_flip.mask();
        var a = try Rig.init(seed +% i, set);
        defer a.deinit();
        var b = try Rig.init(seed +% i, set | Fault.reordered.mask());
        defer b.deinit();
        try a.read_all();
        try b.read_all();
        try b.read_all();
        for (&a.reads, &b.reads, 0..) |*read_a, *read_b, page| {
            try testing.expectEqual(read_a.status, read_b.status);
            if (read_a.status == .io) {
                bad += 1;
                continue;
            }
            try testing.expectEqualSlices(u8, read_a.data(), read_b.data());
            var bits: u32 = 0;
            for (read_a.data(), a.page_bytes(page)) |got, wanted| bits += @popCount(got ^ wanted);
            try testing.expect(bits <= 1);
            bad += bits;
        }
    }
    try testing.expect(bad > 0);
}

test "bytes of the wrong page are whole, and the same read again is right" {
    var struck: u32 = 0;
    for (0..8) |i| {
        var rig = try Rig.init(testing.random_seed +% i, Fault.wrong_page.mask());
        defer rig.deinit();
        try rig.read_all();
        for (&rig.reads, 0..) |*read, page| {
            try testing.expectEqual(.ok, read.status);
            if (rig.is_right(page)) continue;
            struck += 1;
            try testing.expectEqualSlices(u8, rig.page_bytes(if (page == 0) 1 else page - 1), read.data());
            rig.device.submit(read);
            var done: [1]*io.Read = undefined;
            try testing.expectEqual(1, rig.device.poll(&done, .one));
            try testing.expect(rig.is_right(page));
        }
    }
    try testing.expect(struck > 0);
}

test "the same seed repeats everything" {
    for (0..10) |i| {
        const seed = testing.random_seed +% i;
        errdefer std.debug.print("simulated device: seed={d}\n", .{seed});
        var a = try Rig.init(seed, all | swarm);
        defer a.deinit();
        var b = try Rig.init(seed, all | swarm);
        defer b.deinit();
        try a.read_all();
        try b.read_all();
        try testing.expectEqualSlices(u32, &a.order, &b.order);
        try testing.expectEqualSlices(u64, &a.device.injected, &b.device.injected);
        try testing.expectEqual(a.device.clock_us, b.device.clock_us);
        try testing.expectEqualSlices(u8, a.buffers, b.buffers);
        for (&a.reads, &b.reads) |*read_a, *read_b| try testing.expectEqual(read_a.status, read_b.status);
    }
}

test "large reads with every passing fault, continued and repeated, from a file" {
    const seed = testing.random_seed;
    errdefer std.debug.print("simulated device: seed={d}\n", .{seed});
    const size = 64 * 1024;
    const content = try testing.allocator.alloc(u8, 4 * size);
    defer testing.allocator.free(content);
    var prng = base.Prng.init(seed);
    for (content) |*byte| byte.* = @truncate(prng.next());
    var folder = testing.tmpDir(.{});
    defer folder.cleanup();
    try folder.dir.writeFile(.{ .sub_path = "pages", .data = content });
    const file = try folder.dir.openFile("pages", .{});
    defer file.close();
    const buffer = try testing.allocator.alignedAlloc(u8, .fromByteUnits(page_size), size);
    defer testing.allocator.free(buffer);
    var device = try SimulatedDevice.init(testing.allocator, .{
        .file = file.handle,
        .queue_depth = 2,
        .simulated_seed = seed,
        .simulated_faults = Fault.short.mask() | Fault.again.mask() | Fault.late.mask(),
    });
    defer device.deinit();
    for (0..400) |i| {
        var read: io.Read = .{ .offset = i % 4 * size, .buffer = buffer.ptr, .length = size };
        device.submit(&read);
        var done: [1]*io.Read = undefined;
        try testing.expectEqual(1, device.poll(&done, .one));
        try testing.expectEqual(.ok, read.status);
        try testing.expectEqualSlices(u8, content[i % 4 * size ..][0..size], read.data());
    }
    try testing.expect(device.injected_count(.short) > 0);
    try testing.expect(device.injected_count(.again) > 0);
}
