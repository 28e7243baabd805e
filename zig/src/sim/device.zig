//! A device whose time, order and faults come from a seed: the same calls as the real ones (io/device.zig), the real
//! bytes of a file or of memory, and none of the real world's chance. faults.zig lists what can go wrong.
//!
//! Time is virtual: each attempt is due some microseconds after it began, `poll(.one)` moves the clock to the first that
//! is due, `poll(.none)` by a little. Until a read ends its buffer holds poison, so whoever looks early sees nonsense.
const std = @import("std");
const base = @import("base");
const io = @import("io");
const faults = @import("faults.zig");
const Fault = faults.Fault;
const assert = std.debug.assert;
const linux = std.os.linux;
const E = linux.E;

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
    plan: faults.Plan,
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
    /// How often each fault struck.
    injected: [faults.fault_count]u64 = @splat(0),

    pub fn init(allocator: std.mem.Allocator, options: io.Options) io.InitError!SimulatedDevice {
        const second: Source = if (options.second_file) |file| .{ .file = file } else .none;
        return init_source(allocator, options, .{ .{ .file = options.file }, second });
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

    /// What the system would return: a byte count, or a negative errno.
    fn attempt(device: *SimulatedDevice, read: *io.Read) i32 {
        const first_page = read.attempt_offset() / faults.page_size;
        const last_page = (read.offset + read.length - 1) / faults.page_size;
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
            // What an earlier attempt brought stays.
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
            .none => unreachable, // nobody may ask for a file that the device was not given
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
        for (offset / faults.page_size..(offset + bytes.len - 1) / faults.page_size + 1) |page| {
            const number = device.plan.sits_in(.bit_flip, place_of(file, page)) orelse continue;
            const at = page * faults.page_size + number % faults.page_size;
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

/// Pages and offsets of the second file are told apart from those of the first.
fn place_of(file: u1, number: u64) u64 {
    return number | @as(u64, file) << 63;
}

fn negative(e: E) i32 {
    return -@as(i32, @intFromEnum(e));
}

comptime {
    io.check_device(SimulatedDevice);
}
