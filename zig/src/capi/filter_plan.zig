//! What the planner of filtered searches expects and chooses, for `explain`.
const filter_room = @import("filter");
const search = @import("search");
const common = @import("common.zig");
const call = @import("call.zig");
const numbers = @import("numbers.zig");
const Index = @import("handle.zig").Index;

pub const Cost = extern struct {
    /// 0: the plan cannot be had as the index is open.
    possible: u32 = 0,
    reserved: u32 = 0,
    reads: f64 = 0,
    estimates: f64 = 0,
    expanded: f64 = 0,
    us: f64 = 0,

    fn of(cost: search.filter_plan.Cost) Cost {
        return .{
            .possible = @intFromBool(cost.possible),
            .reads = cost.reads,
            .estimates = cost.estimates,
            .expanded = cost.expanded,
            .us = cost.ns / 1000,
        };
    }
};

pub const Plan = extern struct {
    struct_size: u32 = @sizeOf(Plan),
    plan: i32 = 0,
    matches: f64 = 0,
    matches_exact: u32 = 0,
    list_size: u32 = 0,
    scan: Cost = .{},
    gate: Cost = .{},
    late: Cost = .{},
    gate_needs_bytes: u64 = 0,
};

export fn velo_filter_plan(handle: ?*Index, filter: ?*const filter_room.Filter, options: ?*const call.SearchOptions, plan_out: ?*Plan) i32 {
    return common.status_of_call(plan_of(handle, filter, options, plan_out));
}

fn plan_of(handle: ?*Index, filter: ?*const filter_room.Filter, options: ?*const call.SearchOptions, plan_out: ?*Plan) common.Failure!void {
    const self = try common.need("index", handle);
    const one = try common.need("filter", filter);
    const out = try common.need("plan_out", plan_out);
    try self.enter();
    defer self.leave();
    const asked = try call.Asked.of(self, options);
    try self.check_filter(one, 0);
    const parameters = &asked.parameters;
    const choice = search.filter_plan.choice_of(&self.shared, one, parameters);
    common.write_versioned(Plan, out, &.{
        .plan = numbers.number_of(numbers.FilterPlan, search.filter_plan.plan_of(&self.shared, one, parameters)),
        .matches = one.estimate() * @as(f64, @floatFromInt(self.reader.n())),
        .matches_exact = @intFromBool(one.is_exact()),
        .list_size = parameters.list_size,
        .scan = .of(choice.scan),
        .gate = .of(choice.gate),
        .late = .of(choice.late),
        .gate_needs_bytes = if (choice.gate.possible) 0 else self.reader.bytes_with_links(),
    });
}
